"""The site of some experiments, written once, and pages of it in Chromium that record requests and errors."""

import contextlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from registry.experiment import REGISTRY
from registry.site.collect import records
from registry.site.plans import read_plans
from registry.site.write import write_site
from tests.conftest import ROOT

if importlib.util.find_spec("playwright") is None or importlib.util.find_spec("axe_playwright_python") is None:
    collect_ignore_glob = ["test_*.py"]  # `make test` needs no browser; `make test-browser` installs both packages

NAMES = ("tiny.StdlibTiny", "gshard.DenseLm128B8x8", "gshard.DenseLm175B32x32", "mix.GptMoeStdlib", "vq.VQEnwik8")
NAMES += ("llama.Llama3_2_1B", "zero.ZeroTestStage2")
ATTACK = "</script></title><script>window.attacked = true</script><img src=x onerror='window.attacked = true'>"
MODULE = f'''
"""A user's module."""
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny


@register
class Attack(StdlibTiny):
    """An attack {ATTACK} in a docstring.

    `{ATTACK}`
    """

    DATA_PATH = {ATTACK!r}
    NOTE: str = {ATTACK!r}  # {ATTACK}


@register
class Broken(StdlibTiny):
    """Cannot be built."""

    NUM_HEADS = 3
'''
PLAN = {
    "experiment": "tiny.StdlibTiny",
    "smoke": False,
    "overrides": [f"DATA_PATH={ATTACK}"],
    "step": "train",
    "topology": None,
    "chip": "h100",
    "devices": 2,
    "mesh": {"data": 2, "model": 1},
    "fits": True,
    "hbm_bytes_per_device": 80 * 2**30,
    "memory_bytes_per_device": {"weights": 2**20, "optimizer": 2**21, "gradients": 2**20, "peak": 2**23},
    "flops_per_step": 10**12,
    "flops_per_token": 10**6,
    "tokens_per_step": 1024,
    "collectives": [{"kind": "all-reduce", "axis": "data", "dtype": "f32", "count": 3, "bytes": 2**20}],
}


def pytest_collection_modifyitems(items):
    """Marks all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of a site with seven experiments, a user's with scripts in its texts, and one that cannot be built."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "attack_models.py").write_text(MODULE)
    (folder / "plan.json").write_text(json.dumps(PLAN))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("XDG_CACHE_HOME", str(ROOT / ".pytest_cache"))
        names = (*sorted(NAMES), "attack_models.Attack", "attack_models.Broken")
        made = records(names, ["attack_models"])
        write_site(made, folder / "site", read_plans([str(folder / "plan.json")]))
    for key in ("attack_models.Attack", "attack_models.Broken"):
        del REGISTRY[key]
    del sys.modules["attack_models"]
    return folder / "site"


@pytest.fixture(scope="session")
def chromium():
    """The browser."""
    from playwright import sync_api

    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.fail("Chromium is missing. Run make test-browser, which installs it where it may.")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page of the site in a browser window of its own.

    Attributes:
      page: playwright's page.
      requests: the addresses of all requests.
      errors: errors of scripts, and what they print on the console.
    """

    def __init__(self, page, site):
        self.page, self.site, self.requests, self.errors = page, site, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, path: str):
        """Opens a path of the site, as in "index.html#q=vq"; returns the page."""
        self.page.goto(f"{self.site.as_uri()}/{path}")
        return self.page


@pytest.fixture
def visit(chromium, site):
    """Returns a function that opens a page; afterwards fails if a page made a request outside, or had an error."""
    with contextlib.ExitStack() as stack:
        visits = []

        def opened(path: str, *, width: int = 1400, scheme: str = "light"):
            context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            stack.callback(context.close)
            visits.append(Visit(context.new_page(), site))
            return visits[-1].open(path)

        yield opened
        for each in visits:
            assert [url for url in each.requests if not url.startswith((site.as_uri(), "data:"))] == []
            assert each.errors == []
