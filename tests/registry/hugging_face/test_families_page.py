"""The generated tables of docs/reference/families.md are up to date."""

from testing.families_page import PAGE, updated


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text) == text, "Run: python -m testing.families_page"
