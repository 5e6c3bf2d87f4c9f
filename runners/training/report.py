"""report.html: a run on one page, with its curves, weight table and config."""

from registry.pages.page import write_assets
from registry.runs.run import Run
from registry.runs_pages.run_page import run_page, samples_of
from tasks.storage.files import Place, write_whole

REPORT = "report.html"
_WRITTEN: set[str] = set()  # folders whose assets this process has written


def write(workdir: Place) -> Place:
    """Writes the page, and once the `assets` that it loads, from the files of the run folder; returns its path."""
    run = Run(workdir)
    if str(workdir) not in _WRITTEN:
        write_assets(workdir)
        _WRITTEN.add(str(workdir))
    shown = {"summary": run.summary, "spent": run.goodput, "non_finite": run.non_finite}
    write_whole(workdir / REPORT, run_page(run.record, run.lines, samples_of(workdir), **shown))
    return workdir / REPORT
