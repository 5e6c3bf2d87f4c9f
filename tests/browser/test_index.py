"""The index of the site: search, filters, order, keyboard, address, choice of two to compare."""

import pytest
from playwright.sync_api import expect

ALL = 9


def names(page) -> list[str]:
    """Names of the rows that are shown, in their order."""
    return page.locator("#experiments tbody tr:visible .what a").all_inner_texts()


def address(page) -> str:
    return page.evaluate("location.hash")


def test_all_experiments_are_listed_with_their_figures(visit):
    page = visit("index.html")
    assert len(names(page)) == ALL
    row = page.locator("tr[data-name='gshard.DenseLm175B32x32']")
    assert row.locator("td").all_inner_texts()[2:] == ["174.4 B", "2,048", "attention", "dense"]


def test_an_experiment_that_cannot_be_built_has_its_error(visit):
    page = visit("index.html#q=broken")
    assert "NUM_HEADS" in page.locator("tr[data-name='attack_models.Broken']").inner_text()
    page.get_by_role("link", name="attack_models.Broken").click()
    expect(page.locator(".failure")).to_contain_text("NUM_HEADS")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("stdlib", ["tiny.StdlibTiny", "mix.GptMoeStdlib"]),  # names that begin with the word are first
        ("TINY", ["tiny.StdlibTiny"]),
        ("device_mesh_shape=(64", ["gshard.DenseLm175B32x32"]),  # a knob that the experiment sets
        ("mixer=vq", ["vq.VQEnwik8"]),  # without quotes
        ("gshard 128b", ["gshard.DenseLm128B8x8"]),  # both words
        ("nothing-of-this", []),
    ],
)
def test_search_as_you_type(visit, query, found):
    page = visit("index.html")
    page.locator("#query").press_sequentially(query)
    assert [name for name in names(page) if not name.startswith("attack")] == found
    assert page.locator("#nothing").is_visible() == (not names(page))


def test_search_shows_the_knob_that_matches(visit):
    page = visit("index.html#q=mixer%3Dvq")
    assert page.locator("tr[data-name='vq.VQEnwik8'] .hit").inner_text() == "MIXER='vq'"


@pytest.mark.parametrize(
    ("filter_", "value", "found"),
    [
        ("family", "zero", ["zero.ZeroTestStage2"]),
        ("size", "100 B and more", ["gshard.DenseLm128B8x8", "gshard.DenseLm175B32x32"]),
        ("size", "1 B to 10 B", ["llama.Llama3_2_1B"]),
        ("mixer", "vq", ["vq.VQEnwik8"]),
        ("ffn", "experts", ["mix.GptMoeStdlib"]),
        ("devices", "513 and more", ["gshard.DenseLm175B32x32"]),
    ],
)
def test_filters(visit, filter_, value, found):
    page = visit("index.html")
    page.locator(f"#filter-{filter_}").select_option(value)
    assert names(page) == found
    page.locator("#clear").click()
    assert len(names(page)) == ALL
    assert address(page) in ("", "#")


def test_columns_sort_both_ways_and_experiments_without_figures_are_last(visit):
    page = visit("index.html")
    button = page.get_by_role("button", name="Parameters")
    button.click()
    assert names(page)[:2] == ["gshard.DenseLm175B32x32", "gshard.DenseLm128B8x8"]
    assert names(page)[-1] == "attack_models.Broken"
    assert page.locator("th:has(button:text('Parameters'))").get_attribute("aria-sort") == "descending"
    button.click()
    assert names(page)[0] == "zero.ZeroTestStage2"
    assert names(page)[-1] == "attack_models.Broken"
    page.get_by_role("button", name="Experiment").click()
    assert names(page) == sorted(names(page), key=str.lower)


def test_the_address_holds_the_state(visit):
    page = visit("index.html")
    page.locator("#query").fill("gshard")
    page.locator("#filter-devices").select_option("513 and more")
    page.get_by_role("button", name="Parameters").click()
    assert address(page) == "#q=gshard&devices=513+and+more&sort=-parameters"
    again = visit(f"index.html{address(page)}")
    assert names(again) == ["gshard.DenseLm175B32x32"]
    assert again.locator("#query").input_value() == "gshard"
    again.evaluate("location.hash = '#family=zero'")
    expect(again.locator("#query")).to_have_value("")
    assert names(again) == ["zero.ZeroTestStage2"]


def test_keyboard(visit):
    page = visit("index.html")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type("gshard")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "gshard.DenseLm175B32x32"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("gshard.DenseLm175B32x32")
    page.go_back()
    assert page.locator("#query").input_value() == "gshard"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert len(names(page)) == ALL
    page.keyboard.type("zero")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("zero.ZeroTestStage2")


def test_two_chosen_experiments_are_compared(visit):
    page = visit("index.html")
    for name in ("tiny.StdlibTiny", "vq.VQEnwik8", "mix.GptMoeStdlib"):  # a third one replaces the first
        page.get_by_label(f"Compare {name}").check()
    assert not page.get_by_label("Compare tiny.StdlibTiny").is_checked()
    page.locator("#comparison a").click()
    expect(page.locator("#message")).to_contain_text("vq.VQEnwik8")
    assert page.locator("#b").input_value() == "mix.GptMoeStdlib"


def test_a_phone_shows_two_columns_without_overflow(visit):
    page = visit("index.html", width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("#experiments th:visible").count() == 2
