"""Charts of plans, sweeps and coordinate checks in Chromium."""

import pytest

from registry.pages.figures import SCRIPTS, STYLES, Axis, Chart, Series, chart
from registry.pages.page import page, write_assets

ATTACK = "<img src=x onerror='window.attacked = 1'>%{y}"
LINES = Chart(
    name="lines",
    title="Loss",
    x=Axis(title="rate", log=True, ticks=[1, 2, 4], labels=["2^0", "2^1", "2^2"]),
    y=Axis(title=f"y {ATTACK}"),
    series=[
        Series(name="first", x=[1, 2, 4], y=[3.0, 1.0, 2.0], points=True, best=1),
        Series(name=ATTACK, x=[1, 2, 4], y=[4.0, None, 2.5], color=1, dashed=True, faint=True),
    ],
)
BARS = Chart(
    name="bars",
    title="Memory",
    x=Axis(title="GiB", range=(0, 18)),
    series=[Series(name="weights", x=[2.0], text="2 GiB"), Series(name="rest", x=[3.0], text="3 GiB", color=1)],
    kind="bars",
    marks=[16],
    shape="low",
)
STEPS = Chart(
    name="steps",
    title="Lengths",
    x=Axis(title="tokens"),
    series=[Series(name="a", x=[1, 2, 3], y=[2, 1, 3], steps=True)],
)
AREAS = Chart(
    name="areas",
    title="Schedule",
    x=Axis(title="share"),
    series=[Series(name="a", x=[0, 1], y=[2, 1]), Series(name="b", x=[0, 1], y=[1, 3], color=1)],
    kind="areas",
)


@pytest.fixture(scope="module")
def charts(tmp_path_factory):
    """A page with a chart of each kind."""
    folder = tmp_path_factory.mktemp("charts")
    write_assets(folder)
    parts = ["<h1>Charts</h1>", chart(LINES), chart(BARS), chart(AREAS), chart(STEPS)]
    (folder / "charts.html").write_text(page("Charts", parts, styles=STYLES, scripts=SCRIPTS))
    return folder / "charts.html"


@pytest.fixture(params=[400, 1400])
def opened(request, chromium, charts):
    """That page in a narrow and a wide window; afterwards it has had no errors."""
    context = chromium.new_context(viewport={"width": request.param, "height": 2000})
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(charts.as_uri())
    page.wait_for_selector("[data-chart=chart-steps] .trace")
    yield page
    assert page.evaluate("window.attacked") is None
    context.close()
    assert errors == []


def layout(page, name, expression):
    """A value of plotly's layout, `layout` in the expression."""
    script = "(name) => { const layout = document.querySelector(`[data-chart=chart-${name}]`)._fullLayout; return EX }"
    return page.evaluate(script.replace("EX", expression), name)


def test_axes_are_switched_by_their_buttons(opened):
    assert layout(opened, "lines", "[layout.xaxis.type, layout.yaxis.type]") == ["log", "linear"]
    opened.get_by_role("button", name="log x").first.click()
    opened.get_by_role("button", name="log y").first.click()
    assert layout(opened, "lines", "[layout.xaxis.type, layout.yaxis.type]") == ["linear", "log"]
    opened.get_by_role("button", name="log x").first.click()
    assert layout(opened, "lines", "layout.xaxis.type") == "log"


def test_the_readout_has_the_lines_with_a_value(opened):
    opened.locator("[data-chart=chart-lines]").hover()
    assert opened.locator(".readout p").inner_text() == "rate 2"
    names = opened.locator(".readout div span:not(.swatch)").all_inner_texts()
    assert "first" in names
    opened.locator("[data-chart=chart-lines]").press("End")
    assert opened.locator(".readout b").all_inner_texts() == ["2.5000", "2"]


def test_texts_run_no_script(opened):
    assert opened.locator("main img").count() == 0
    assert ATTACK in opened.locator("ul.legend").first.inner_text()
    assert ATTACK.replace("%{", "% {") in opened.locator("[data-chart=chart-lines] .ytitle").text_content()


def test_bars_and_their_legend(opened):
    bars = opened.locator("[data-chart=chart-bars] .bars .point path")
    boxes = [bars.nth(number).bounding_box() for number in range(2)]
    assert boxes[1]["x"] == pytest.approx(boxes[0]["x"] + boxes[0]["width"], abs=1), "one ends where the next begins"
    assert boxes[1]["width"] == pytest.approx(1.5 * boxes[0]["width"], rel=0.05)
    assert boxes[0]["height"] > 10
    assert opened.locator("ul.legend").nth(1).locator("button").all_inner_texts() == ["weights 2 GiB", "rest 3 GiB"]
    assert layout(opened, "bars", "layout.shapes[0].x0") == 16


def test_areas_are_stacked(opened):
    assert layout(opened, "areas", "layout.yaxis.range")[1] > 4, "1 + 3 at the end"
    opened.locator("[data-chart=chart-areas]").press("End")
    assert opened.locator(".readout b").all_inner_texts() == ["3", "1"]


def test_charts_are_accessible(opened):
    from axe_playwright_python.sync_playwright import Axe

    opened.locator("summary").first.click()
    assert Axe().run(opened, options={"preload": False}).response["violations"] == []
