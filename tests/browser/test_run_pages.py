"""Pages of runs in Chromium: curves, readout, axes, smoothing, themes, deep links, requests, accessibility."""

import contextlib
import json
import re
import threading
from urllib.parse import quote

import pytest

from registry.runs_pages.runs_page import RunPages, write_runs
from registry.site.serve import HOST, server
from runners.training import report
from tests.support.runs_with_curves import metrics, run_folder

ATTACK = "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
LOSS = "figure[data-metric=loss]"
WIDTHS = (400, 1400)
DRAWN = """(metric) => {
    const figure = document.querySelector(`figure[data-metric=${metric}]`);
    figure?.scrollIntoView();  // again and again: a page that is loaded again restores where it was scrolled to
    return figure?.querySelector(".scatterlayer .trace") != null;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the pages of three runs, one with markup in all its texts, and the run folders."""
    root = tmp_path_factory.mktemp("site")
    attack = {"doc": ATTACK, "overrides": [ATTACK]}
    folders = [
        run_folder(root / "all" / "small", "MODEL_DIM=64", sample="def f(x):\n    return x"),
        run_folder(root / "all" / "wide", "MODEL_DIM=96", lines=metrics(40, 1.5)),
        run_folder(root / "all" / ATTACK.replace("/", "\\"), sample=ATTACK, lines=metrics(60, 1), changes=attack),
    ]
    record = json.loads((folders[2] / "experiment.json").read_text())
    record["knobs"]["MODEL_DIM"] = {"value": ATTACK, "owner": ATTACK}
    (folders[2] / "experiment.json").write_text(json.dumps(record))
    write_runs(root / "out", folders, {"Runs": "runs.html"})
    report.write(folders[0])
    report.write(folders[2])
    return root


@pytest.fixture
def visit(chromium):
    """Opens a file or address; afterwards no error was logged, and only files (or that server) were requested."""
    problems, contexts = [], []

    def visit(address, *, width=1400, dark=False, allowed="file://", ready=f"{LOSS} .scatterlayer .trace", **more):
        scheme = "dark" if dark else "light"
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        for_pages = (allowed, "data:", "blob:")
        page.on("request", lambda made: None if made.url.startswith(for_pages) else problems.append(made.url))
        page.goto(str(address) if "://" in str(address) else f"file://{quote(str(address), safe='/#?=&:%')}")
        page.wait_for_selector(ready)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert problems == []


def lines_of(page, metric="loss"):
    """The number of lines that a figure shows."""
    return page.locator(f"figure[data-metric={metric}] .scatterlayer .trace").count()


def plot_data(page, expression, metric="loss"):
    """A value of plotly's figure, `plot` in the expression."""
    plot = "const plot = document.querySelector(`figure[data-metric=${metric}] .plot`)"
    return page.evaluate(f"(metric) => {{ {plot}; return {expression} }}", metric)


def hover(page, metric="loss"):
    """Moves the pointer over a figure, after the page has scrolled there."""
    plot = page.locator(f"figure[data-metric={metric}] .plot")
    plot.scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    plot.hover()


def set_smoothing(page, value):
    page.locator("input[name=smooth]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })) }", value
    )


def test_curves_are_drawn_and_their_readout_has_all_values(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    assert lines_of(page) == 2
    hover(page)
    readout = page.locator(".readout")
    readout.wait_for()
    assert readout.locator("p").inner_text().startswith("step ")
    assert sorted(readout.locator("div span:not(.swatch)").all_inner_texts()) == ["train", "validation"]
    assert all(1 < float(value) < 6 for value in readout.locator("b").all_inner_texts())
    page.mouse.move(0, 0)
    assert readout.is_hidden()


def test_keys_move_the_readout(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    page.locator(f"{LOSS} .plot").focus()
    page.keyboard.press("Home")
    assert page.locator(".readout p").inner_text() == "step 1"
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout p").inner_text() == "step 2"
    assert page.locator(f"{LOSS} [role=status]").inner_text().startswith("step 2: train ")
    page.keyboard.press("Escape")
    assert page.locator(".readout").is_hidden()


def test_logarithmic_axes(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    page.get_by_label("log y").check()
    page.get_by_label("log x").check()
    assert plot_data(page, "[plot._fullLayout.xaxis.type, plot._fullLayout.yaxis.type]") == ["log", "log"]
    page.get_by_label("Logarithmic axis of loss").click()
    assert plot_data(page, "plot._fullLayout.yaxis.type") == "linear"
    assert plot_data(page, "plot._fullLayout.yaxis.type", "bits_per_byte") == "log"


def test_smoothing_keeps_the_raw_line_pale(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    jumps = "Math.max(...plot.data.at(-2).y.slice(40).map((y, at, all) => Math.abs(y - (all[at - 1] ?? y))))"
    before = plot_data(page, jumps)
    set_smoothing(page, 0.9)
    assert lines_of(page) == 3
    assert plot_data(page, jumps) < before / 2
    assert plot_data(page, "plot.data[0].opacity") < 0.5
    assert page.locator("output").inner_text() == "0.90"
    assert plot_data(page, "plot.data.length", "learning_rate") == 1, "it is set, not measured"


@pytest.mark.parametrize(
    ("axis", "last", "title"),
    [("tokens", 60 * 256, "tokens"), ("FLOPs", 60_000, "FLOPs"), ("time", 30, "training time, s")],
)
def test_other_horizontal_axes(visit, site, axis, last, title):
    page = visit(site / "all" / "small" / "report.html")
    page.locator(".choice", has_text=axis).click()
    assert plot_data(page, "plot.data[0].x.at(-1)") == last
    assert plot_data(page, "plot._fullLayout.xaxis.title.text") == title
    assert plot_data(page, "plot.data[1].x.at(-1)") == last, "validation has no count of its own"


def test_zoom_is_shared_and_reset(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    box = page.locator(f"{LOSS} .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 44, steps=5)
    page.mouse.up()
    page.wait_for_timeout(200)
    first, other = (plot_data(page, "plot._fullLayout.xaxis.range", metric) for metric in ("loss", "bits_per_byte"))
    assert 20 < first[0] < 40 < first[1] < 60
    assert other == first
    low, high = plot_data(page, "plot._fullLayout.yaxis.range")
    assert high - low < 1, "y fits what is visible"
    page.get_by_role("button", name="Reset zoom").click()
    assert plot_data(page, "plot._fullLayout.xaxis.range[1]") >= 60


def test_splits_are_hidden_and_highlighted(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    train = page.locator(".splits button", has_text="train")
    train.hover()
    page.wait_for_timeout(100)
    assert plot_data(page, "plot.data.map((trace) => trace.opacity < 0.5)") == [False, True]
    train.click()
    assert lines_of(page) == 1
    assert "hide=train" in page.url


def test_values_are_in_a_table(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    page.locator(f"{LOSS} summary").click()
    rows = page.locator(f"{LOSS} table tbody tr")
    rows.first.wait_for()
    assert rows.locator("th").all_inner_texts() == ["train", "validation"]
    assert rows.nth(0).locator("td").nth(0).inner_text() == "60"
    page.get_by_label("Enlarge loss").click()
    assert page.locator(LOSS).bounding_box()["width"] > 1000


@pytest.mark.parametrize("dark", [False, True])
def test_figures_follow_the_theme(visit, site, dark):
    page = visit(site / "all" / "small" / "report.html", dark=dark)
    color = lambda: plot_data(page, "plot.data[0].line.color")
    before = color()
    page.get_by_label("Switch between light and dark").click()
    assert color() != before
    assert {before, color()} == {"#0072b2", "#5bb4f0"}
    text = plot_data(page, "getComputedStyle(plot.querySelector('.xtick text')).fill")
    assert text == page.evaluate("getComputedStyle(document.querySelector('.note')).color")


def test_several_runs_over_each_other(visit, site):
    page = visit(site / "out" / "runs.html")
    page.wait_for_function("Object.keys(vortaroRuns).length === 3")
    page.wait_for_timeout(200)
    assert lines_of(page) == 6
    assert page.locator("[data-count]").inner_text() == "3 of 3 chosen"
    page.get_by_label("Show curves of wide").uncheck()
    assert lines_of(page) == 4
    page.get_by_role("button", name="Choose none").click()
    assert lines_of(page) == 0
    page.get_by_label("Show curves of wide").check()
    assert lines_of(page) == 2
    assert page.url.endswith("#run=wide")
    assert page.locator("ul.chosen").inner_text() == "wide"


def test_a_link_chooses_runs_and_axes(visit, site):
    page = visit(
        f"{site}/out/runs.html#run=small&run=wide&x=tokens&smooth=0.5&log=y&sort=best%20loss:down&hide=validation"
    )
    page.wait_for_function("Object.keys(vortaroRuns).length === 2")
    page.wait_for_timeout(200)
    assert plot_data(page, "plot._fullLayout.xaxis.title.text") == "tokens"
    assert plot_data(page, "plot._fullLayout.yaxis.type") == "log"
    assert plot_data(page, "plot.data.map((trace) => trace.meta ?? null)") == [None, "small", None, "wide"]
    order = page.locator("table.runs tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.run)")
    assert order[:2] == ["small", "wide"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "best loss"
    page.evaluate("location.hash = '#run=wide'")
    page.wait_for_timeout(300)
    assert plot_data(page, "plot.data.map((trace) => trace.meta)") == ["wide", "wide validation"]


def test_rows_are_sorted_by_values(visit, site):
    page = visit(site / "out" / "runs.html")
    order = lambda: page.locator("table.runs tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.run)")
    page.get_by_role("button", name="best loss").click()
    assert order()[1:] == ["wide", "small"]
    page.get_by_role("button", name="best loss").click()
    assert order()[:2] == ["small", "wide"]
    page.get_by_role("button", name="MODEL_DIM").click()
    assert order()[1:] == ["small", "wide"], "texts are before numbers"


def test_texts_of_runs_run_no_script(visit, site):
    name = ATTACK.replace("/", "\\")
    pages = [site / "out" / "runs.html", site / "all" / name / "report.html"]
    pages += [file for file in (site / "out" / "runs").glob("*.html") if "script" in file.name]
    assert len(pages) == 3
    for place in pages:
        page = visit(f"file://{quote(str(place))}")
        hover(page)
        page.locator(f"{LOSS} summary").click()
        page.wait_for_timeout(200)
        assert page.evaluate("window.attacked") is None
        assert page.locator("main img").count() == 0


def test_pages_of_runs_link_to_each_other(visit, site):
    page = visit(site / "out" / "runs.html")
    page.locator("table.runs").get_by_role("link", name="small").click()
    page.wait_for_selector(f"{LOSS} .scatterlayer .trace")
    assert page.locator("h1").inner_text() == "small"
    assert "return x" in page.locator("pre").first.inner_text()
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("table.runs")


def test_nothing_moves_while_figures_are_drawn(visit, site):
    page = visit(site / "all" / "small" / "report.html")
    script = """() => new Promise((resolve) => new PerformanceObserver((list) => resolve(
        list.getEntries().reduce((sum, entry) => sum + (entry.hadRecentInput ? 0 : entry.value), 0)
    )).observe({ type: "layout-shift", buffered: true }) || setTimeout(() => resolve(0), 500))"""
    assert page.evaluate(script) < 0.02


def test_a_phone_scrolls_over_figures(visit, site):
    page = visit(site / "out" / "runs.html", width=400, has_touch=True, is_mobile=True)
    assert plot_data(page, "plot._fullLayout.dragmode") is False
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.locator(f"{LOSS} .plot").scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    page.locator(f"{LOSS} .plot").tap()
    page.locator(".readout b").first.wait_for()
    page.locator("h1").scroll_into_view_if_needed()
    page.locator("h1").tap()
    assert page.locator(".readout").is_hidden()


def test_pages_are_refreshed_while_a_run_trains(visit, tmp_path):
    folder = run_folder(tmp_path / "all" / "a", lines=metrics(20))
    pages = RunPages(tmp_path / "out")
    pages.write([folder])
    with serving(tmp_path / "out") as root:
        opened = [visit(f"{root}/{name}", allowed=root) for name in ("runs.html", "runs/a.html")]
        for page in opened:
            page.wait_for_function("live.versions !== null")
        text = "".join(json.dumps(line) + "\n" for line in metrics(50))
        (folder / "metrics.jsonl").write_text(text)
        assert pages.write([folder]) == ["a"]
        for page in opened:
            page.evaluate("live.check()")
            page.wait_for_function(f"document.querySelector('{LOSS} .plot').data[0].x.at(-1) === 50")
        assert "50" in opened[0].locator("table.runs tbody tr").inner_text()
        assert opened[0].get_by_label("Show curves of a").is_checked()
        assert "50" in opened[1].locator(".cards").inner_text()


@pytest.mark.parametrize("name", ["runs.html", "runs/a.html"])
def test_pages_opened_before_the_first_metrics_get_figures(visit, tmp_path, name):
    folder = run_folder(tmp_path / "all" / "a", lines=[])
    pages = RunPages(tmp_path / "out")
    pages.write([folder])
    with serving(tmp_path / "out") as root:
        page = visit(f"{root}/{name}#log=y", allowed=root, ready="h1")
        for steps, metric in ((20, "loss"), (30, "new_metric")):
            page.wait_for_load_state("networkidle")
            page.wait_for_function("live.versions !== null")
            lines = [
                {"new_metric": line["loss"], **line} if metric == "new_metric" else line for line in metrics(steps)
            ]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            assert pages.write([folder]) == ["a"]
            page.evaluate("void live.check()")
            page.wait_for_function(DRAWN, arg=metric)
            assert plot_data(page, "plot._fullLayout.yaxis.type", metric) == "log"


@pytest.mark.parametrize("width", WIDTHS)
def test_words_of_short_cells_are_not_broken(visit, site, width):
    page = visit(site / "all" / "small" / "report.html", width=width)
    cells = page.locator("table.data td").filter(has_text=re.compile("^(embedding|replicated|normal)$"))
    lines = """(cells) => cells.map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return range.getClientRects().length;
    })"""
    found = [count for count in cells.evaluate_all(lines) if count]
    assert found
    assert set(found) == {1}


@contextlib.contextmanager
def serving(folder):
    """Serves a folder; yields the address."""
    with server(folder, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{running.server_address[1]}"
        running.shutdown()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_pages_are_accessible(visit, site, width, dark):
    from axe_playwright_python.sync_playwright import Axe

    for name in ("all/small/report.html", "out/runs.html", "out/runs/wide.html"):
        page = visit(site / name, width=width, dark=dark)
        page.wait_for_timeout(300)
        page.locator(f"{LOSS} summary").click()
        found = Axe().run(page, options={"preload": False}).response["violations"]
        nodes = [(each["id"], node["html"][:200]) for each in found for node in each["nodes"]]
        assert nodes == [], name
