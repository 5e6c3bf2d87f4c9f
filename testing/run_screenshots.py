"""Pictures of pages of runs, plans and data for the docs: `python -m testing.run_screenshots` writes docs/figures."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page

from registry.runs_pages.runs_page import write_runs
from testing.screenshots import FIGURES, opened_page

TRAIN = ("--exp=tiny.StdlibTiny", "--no-tensorboard", "--set=NUM_STEPS=300", "--set=LOG_EVERY=2", "--set=EVAL_EVERY=25")
RUNS = {"base": (), "slow": ("--set=LEARNING_RATE=0.001",), "wide": ("--set=MODEL_DIM=192",)}
PLAN = ("--exp=gpt.GptBase", "--mode=plan", "--chip=v4", "--host_devices=64", "--set=DEVICE_MESH_SHAPE=64,1")
DATA = ("--exp=gpt.GptStdlib", "--smoke", "--mode=inspect_data", "--set=ROWS=pack", "--set=DOCUMENT_MASKS=true")
HEIGHT = 1250  # pixels


def main() -> None:
    """Trains three small runs (some minutes), plans, inspects data, and takes a picture of each page.

    Raises:
      UsageError: Chromium is missing.
    """
    with tempfile.TemporaryDirectory() as name, opened_page(HEIGHT) as page:
        folder = Path(name)
        for run, settings in RUNS.items():
            _command(folder / "runs" / run, *TRAIN, *settings)
        _command(folder / "runs" / "base", "--mode=sample", "--prompt=def ", "--max_new_tokens=200")
        _command(folder / "plan", *PLAN)
        _command(folder / "data", *DATA)
        write_runs(
            folder / "site", sorted((folder / "runs").iterdir()), {"Experiments": "index.html", "Runs": "runs.html"}
        )
        for picture in _pictures(page, folder):
            page.screenshot(path=FIGURES / picture)


def _command(workdir: Path, *flags: str) -> None:
    subprocess.run([sys.executable, "-m", "runners.main", f"--workdir={workdir}", *flags], check=True)


def _pictures(page: Page, folder: Path) -> Iterator[str]:
    """Yields the name of each picture when the page shows it."""
    page.goto(f"{folder.as_uri()}/runs/base/report.html#smooth=0.6")
    page.locator("figure[data-metric=loss] .trace").first.wait_for()
    yield "report_page.png"
    page.goto(f"{folder.as_uri()}/site/runs.html#smooth=0.9&x=seconds")
    page.locator("figure[data-metric=loss] .trace").nth(8).wait_for()
    page.locator("figure[data-metric=loss] .plot").hover()
    yield "runs_page.png"
    for name, picture in (("plan/plan.html", "plan_page.png"), ("data/data.html", "data_page.png")):
        page.goto(f"{folder.as_uri()}/{name}")
        page.locator(".plot svg").first.wait_for()
        yield picture


if __name__ == "__main__":
    main()
