"""The page of an experiment: slices over the mesh, knobs, config, plans, commands."""

import pytest
from playwright.sync_api import expect

GIANT = "experiments/gshard.DenseLm128B8x8.html"  # 8 x 16 devices

# The sum of layout shifts since the page was opened, a figure of Chromium (0.1 is what a reader notices).
SHIFTS = """() => new Promise((done) => {
  let sum = 0;
  new PerformanceObserver((list) => list.getEntries().forEach((each) => (sum += each.value))).observe(
    { type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 300);
})"""


def slice_text(page) -> str:
    return page.locator("#held-slice").inner_text()


def test_a_weight_under_the_mouse_shows_its_slices(visit):
    page = visit(GIANT)
    page.locator("#weight-table tbody tr", has_text="ffn_in_mf").hover()
    assert page.locator("#slices [role=option]").count() == page.evaluate(
        "vortaro.mesh.cuts(Object.values(vortaro.entries)[0].weights.find((w) => w.path.endsWith('ffn_in_mf')), "
        "Object.values(vortaro.entries)[0].mesh).reduce((n, cut) => n * cut.parts, 1)"
    )
    assert "ffn_in_mf[" in slice_text(page)
    page.locator("#weight-table tbody tr", has_text="final_norm").hover()
    assert page.locator("#slices [role=option]").count() == 1
    assert "as 127 other devices do" in slice_text(page)


def test_a_device_under_the_mouse_shows_what_it_holds(visit):
    page = visit(GIANT)
    sizes = page.evaluate("Object.values(vortaro.entries)[0].mesh")
    assert sizes["data"] * sizes["model"] == page.locator("#devices [role=option]").count() == 128
    number = 3 * sizes["model"] + 2
    page.locator(f"#devices-{number}").hover()
    assert "data 3, model 2 holds" in slice_text(page)
    assert page.locator("#mesh-held").inner_text().startswith("Device data 3, model 2: ")
    held = page.locator("#held li").count()
    assert held == page.locator("#weight-table tbody tr").count()
    total = page.evaluate("vortaro.size(Object.values(vortaro.entries)[0].totals.bytes_per_device)")
    assert page.locator("#mesh-held").inner_text().endswith(total)
    page.locator("h1").hover()
    assert "data 0, model 0 holds" in slice_text(page)


@pytest.mark.parametrize(
    "name", ["gshard.DenseLm128B8x8", "zero.ZeroTestStage2", "tiny.StdlibTiny", "mix.GptMoeStdlib"]
)
def test_slices_of_all_devices_cover_each_weight_equally_often(visit, name):
    page = visit(f"experiments/{name}.html")
    wrong = page.evaluate(
        """() => {
          const { mesh, weights } = Object.values(vortaro.entries)[0];
          const axes = Object.keys(mesh), sizes = Object.values(mesh), count = sizes.reduce((a, b) => a * b, 1);
          return weights.filter((weight) => {
            const cuts = vortaro.mesh.cuts(weight, mesh);
            const counts = new Map();
            for (let number = 0; number < count; number += 1) {
              const at = vortaro.grid.coordinates(number, sizes);
              const device = Object.fromEntries(axes.map((axis, place) => [axis, at[place]]));
              const text = vortaro.mesh.text(weight, vortaro.mesh.parts(weight, mesh, device), cuts);
              counts.set(text, (counts.get(text) ?? 0) + 1);
            }
            const parts = cuts.reduce((product, cut) => product * cut.parts, 1);
            const isEven = [...counts.values()].every((each) => each === count / parts);
            return counts.size !== parts || !isEven || weight.bytes / parts !== weight.bytes_per_device;
          }).map((weight) => weight.path);
        }"""
    )
    assert wrong == []


def test_devices_and_weights_by_keyboard(visit):
    page = visit(GIANT)
    page.locator("#devices [role=listbox]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    selected = page.locator("#devices [aria-selected=true]")
    expect(selected).to_have_count(1)
    assert selected.get_attribute("aria-label") == "data 1, model 1"
    page.keyboard.press("End")
    assert selected.get_attribute("aria-label") == "data 7, model 15"
    page.locator("#weight-table tbody button", has_text="final_norm").focus()
    assert "norm_scale_m" in slice_text(page)
    page.locator("#weight").select_option(label="embedding/embedding_vm")
    assert "embedding_vm[" in slice_text(page)


@pytest.mark.parametrize("sizes", [[], [1], [8], [16], [64], [2048], [8, 16], [16, 8], [256, 8], [1, 128], [2, 3, 4]])
def test_a_grid_has_each_cell_once(visit, sizes):
    page = visit("experiments/tiny.StdlibTiny.html")
    columns, order = page.evaluate(f"Object.values(vortaro.grid.layout({sizes}))")
    count = 1
    for size in sizes:
        count *= size
    assert sorted(order) == list(range(count))
    assert 1 <= columns <= 64


def test_knobs_have_values_meanings_and_owners(visit):
    page = visit("experiments/tiny.StdlibTiny.html")
    row = page.locator("table.knobs tr", has=page.get_by_text("LEARNING_RATE", exact=True))
    assert row.locator("th, td").all_inner_texts() == [
        "LEARNING_RATE",
        "0.003",
        "peak learning rate",
        "tiny.StdlibTiny",
    ]
    page.locator("#others summary").click()
    others = page.locator("#others tr", has=page.get_by_text("LABEL_SMOOTHING", exact=True))
    expect(others.locator("td").last).to_have_text("templates.training.LanguageTraining")


def test_ancestors_link_to_their_pages(visit):
    page = visit("experiments/zero.ZeroTestStage2.html")
    line = page.locator(".line").first.locator(":scope > li .who :is(a, b)").all_inner_texts()
    assert line[:4] == ["zero.ZeroTestStage2", "zero.ZeroTest", "zero.ZeroLm", "templates.gpt_lm.GptLm"]


def test_the_config_is_a_tree_that_a_filter_opens(visit):
    page = visit("experiments/tiny.StdlibTiny.html")
    assert page.locator("#tree .leaf").count() == 0
    page.locator("details[data-path='task'] > summary").click()
    page.locator("details[data-path='task.model'] > summary").click()
    expect(page.locator("[data-path='task.model.embedding']")).to_be_visible()
    page.locator("#config-filter").fill("embedding.vocab_size")
    assert page.locator("#tree .leaf:visible").all_inner_texts() == ["vocab_size 256"]
    page.locator("#config-filter").fill("")
    page.locator("#expand").click()
    leaves = page.locator("#tree .leaf").count()
    assert leaves > 100
    page.locator("#collapse").click()
    assert page.locator("#tree .leaf:visible").count() == 0


def test_plans_have_their_figures(visit):
    page = visit("experiments/tiny.StdlibTiny.html#plans")
    text = page.locator(".plan").inner_text()
    assert "Fits: 8 MiB of 80 GiB." in text
    assert "tokens per step\n1,024" in text


def test_a_command_is_copied(visit):
    page = visit("experiments/tiny.StdlibTiny.html")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == "python -m registry show tiny.StdlibTiny --all"


def test_nothing_moves_while_a_page_loads_and_the_mouse_moves(visit):
    page = visit(GIANT)
    top = page.evaluate("document.querySelector('#memory').offsetTop")
    for row in page.locator("#weight-table tbody tr").all()[:6]:
        row.hover()
    assert page.evaluate("document.querySelector('#memory').offsetTop") == top
    assert page.evaluate(SHIFTS) < 0.01
