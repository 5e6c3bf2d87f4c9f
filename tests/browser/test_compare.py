"""The comparison of two experiments."""

import re

from playwright.sync_api import expect

PAIR = "compare.html#a=tiny.StdlibTiny&b=mix.GptMoeStdlib"


def section(page, title: str):
    return page.get_by_role("group", name=title)


def test_a_deep_link_compares_two(visit):
    page = visit(PAIR)
    expect(page).to_have_title("tiny.StdlibTiny and mix.GptMoeStdlib · Compare")
    knobs = section(page, "Knobs")
    row = knobs.locator("tr", has=page.get_by_text("FFN", exact=True))
    assert row.locator("td").all_inner_texts()[:2] == ["'dense'", "('experts', 'dense')"]
    assert knobs.locator("tr", has=page.get_by_text("MODEL_DIM", exact=True)).count() == 0
    assert "absent" in section(page, "Weights").inner_text()
    ratios = section(page, "Totals").locator("tbody td:last-child").all_inner_texts()
    assert all(re.fullmatch(r"[\d.]+.|", ratio) for ratio in ratios)


def test_equal_values_are_shown_on_request(visit):
    page = visit(PAIR)
    differing = section(page, "Config").locator("tbody tr").count()
    page.get_by_label("Show equal values too").check()
    expect(section(page, "Config").locator("tbody tr.equal").first).to_be_visible()
    assert section(page, "Config").locator("tbody tr").count() > differing


def test_choices_change_the_address(visit):
    page = visit("compare.html")
    expect(page.locator("#message")).to_have_text("Choose two experiments.")
    page.locator("#a").select_option("vq.VQEnwik8")
    page.locator("#b").select_option("llama.Llama3_2_1B")
    expect(section(page, "Totals")).to_be_visible()
    assert page.evaluate("location.hash") == "#a=vq.VQEnwik8&b=llama.Llama3_2_1B"
    page.locator("#swap").click()
    assert page.evaluate("location.hash") == "#a=llama.Llama3_2_1B&b=vq.VQEnwik8"
    page.evaluate("location.hash = '#a=zero.ZeroTestStage2&b=zero.ZeroTestStage2'")
    expect(page.locator("#result")).to_contain_text("are equal")


def test_names_that_the_site_lacks_are_ignored(visit):
    page = visit("compare.html#a=../../secret&b=attack_models.Broken")
    expect(page.locator("#message")).to_have_text("Choose two experiments.")
