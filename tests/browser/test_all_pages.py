"""What holds for every page: accessibility, colors, no script from texts, figures of a site from a server."""

import threading

import pytest
from axe_playwright_python.sync_playwright import Axe

from registry.site.serve import server

PAGES = {
    "index": "index.html",
    "search": "index.html#q=mixer%3Dvq",
    "experiment": "experiments/gshard.DenseLm128B8x8.html",
    "experiment with a plan": "experiments/tiny.StdlibTiny.html",
    "experts": "experiments/mix.GptMoeStdlib.html",
    "error": "experiments/attack_models.Broken.html",
    "comparison": "compare.html#a=tiny.StdlibTiny&b=mix.GptMoeStdlib",
    "attack": "experiments/attack_models.Attack.html",
}
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("page_name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_axe_finds_no_violation(visit, page_name, scheme, width):
    page = visit(PAGES[page_name], width=width, scheme=scheme)
    for details in page.locator("main details:visible").all()[:6]:
        details.evaluate("(element) => (element.open = true)")
    page.wait_for_timeout(200)
    violations = Axe().run(page, options={"preload": False}).response["violations"]  # preload requests the style again
    assert [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_colors_follow_the_system_and_the_choice_is_remembered(visit):
    page = visit("index.html")
    light = page.evaluate(BACKGROUND)
    assert visit("index.html", scheme="dark").evaluate(BACKGROUND) != light
    page.get_by_role("button", name="Switch between light and dark").click()
    page.wait_for_timeout(300)
    dark = page.evaluate(BACKGROUND)
    assert dark != light
    page.get_by_role("link", name="tiny.StdlibTiny").click()
    assert page.evaluate(BACKGROUND) == dark


def test_colors_of_slices_follow_the_theme(visit):
    page = visit("experiments/gshard.DenseLm128B8x8.html")
    color = "document.getElementById('devices-5').style.getPropertyValue('--cell')"
    before = page.evaluate(color)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(color) != before


@pytest.mark.parametrize(
    "path",
    [
        "index.html",
        "index.html#q=attacked",
        "index.html#q=%3Cscript%3Ewindow.attacked%3Dtrue%3C%2Fscript%3E",
        "experiments/attack_models.Attack.html",
        "experiments/tiny.StdlibTiny.html",
        "compare.html#a=attack_models.Attack&b=tiny.StdlibTiny",
        "compare.html#a=%3Cimg%20src%3Dx%20onerror%3Dwindow.attacked%3Dtrue%3E&b=x",
    ],
)
def test_scripts_in_texts_do_not_run(visit, path):
    page = visit(path)
    for details in page.locator("main details:visible").all():
        details.evaluate("(element) => (element.open = true)")
    if page.locator("#expand").count():
        page.locator("#expand").click()
    page.wait_for_timeout(200)
    assert page.evaluate("window.attacked") is None
    if "Attack" in path:
        assert "window.attacked = true" in page.locator("main").inner_text()


def test_the_site_from_a_server(chromium, site):
    with server(site, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{running.server_address[1]}/"
        page, requests = chromium.new_page(), []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        page.get_by_role("link", name="tiny.StdlibTiny").click()
        page.locator("#held-slice code").wait_for()
        page.close()
        running.shutdown()
    assert all(url.startswith((address, "data:")) for url in requests)
