"""The page of all runs: a table with the knobs that differ, and the curves of the chosen runs over each other."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from registry.pages import figures
from registry.pages.page import ASSETS, listed_names, page, render, script_json, text, write_assets, write_changed
from registry.records.diff import differing
from registry.records.quantities import amount, duration
from registry.records.record import EXPERIMENT
from registry.runs.folders import METRICS
from registry.runs.run import Run
from registry.runs.state import is_in_use
from registry.runs_pages.curves import AXES, SCRIPTS, curves, groups, panel
from registry.runs_pages.run_page import run_page, samples_of
from registry.runs_pages.titles import file_names, full_name, titles
from tasks.storage.files import Place, make_folder, write_whole

RUNS = "runs.html"
FOLDER = "runs"  # of the pages and data of each run
VERSIONS = "version.json"  # in FOLDER: which state of a run its page shows, by title
FILES = "files.json"  # in FOLDER: names of the files in it that the last command wrote
RESULTS = ("state", "step", "best loss", "loss", "bits per byte", "train loss")  # columns before the knobs
AMOUNTS = ("tokens", "training time", "parameters")  # columns after them
MOST_FIRST = 8  # runs that are chosen until a reader chooses others, the latest ones


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table of runs."""

    text: str
    value: str = ""  # by which rows are ordered; empty: last
    kind: str = ""  # class: "n" number, "knob", or that of a state


@dataclasses.dataclass(frozen=True)
class Row:
    """What the page of all runs shows of a run."""

    version: str  # changes whenever its files do
    title: str  # unique among the runs
    file: str  # name of its files without suffix
    folder: str  # its folder, as it was given
    entry: str
    started: str
    knobs: Mapping[str, str]
    cells: Mapping[str, Cell]
    outline: Mapping[str, Any]  # its curves, without most points
    problem: str = ""  # why it cannot be read; empty if it can


class RunPages:
    """Writer of the pages of runs, which remembers what it has written: later calls write what has changed."""

    def __init__(self, out: Place, links: Mapping[str, str] | None = None):
        """Writes into `out`; `links` are labels and paths, relative to `out`, of the pages in the header."""
        self.out, self.links = out, dict(links or {})
        self.rows: dict[str, Row] = {}  # by folder

    def write(self, folders: Iterable[Place]) -> list[str]:
        """Writes runs.html, and the page and data of each run that has changed since the last call.

        Returns:
          the titles of the runs that have changed.

        Raises:
          OSError: a file cannot be read or written.
        """
        make_folder(self.out / FOLDER)
        runs = {full_name(folder): Run(folder) for folder in folders}
        shown = titles(list(runs))
        files = file_names(shown.values())
        changed, is_new = [], runs.keys() != self.rows.keys() or not runs
        for name, run in runs.items():
            found, title, row = version(run), shown[name], self.rows.get(name)
            if row is None or (row.version, row.title, row.file) != (found, title, files[title]):
                self.rows[name] = self._write_run(run, title, files[title], found)
                changed.append(title)
        self.rows = {name: self.rows[name] for name in runs}
        if changed or is_new:
            write_assets(self.out)
            write_whole(self.out / RUNS, self._all_runs())
            self._write_versions()
        return changed

    def _write_versions(self) -> None:
        """Records the versions of the pages and their files, and removes the files of runs that have left."""
        folder = self.out / FOLDER
        made = {f"{row.file}{suffix}" for row in self.rows.values() if not row.problem for suffix in (".html", ".js")}
        _remove(folder, _recorded(folder) - made)
        write_changed(folder / FILES, json.dumps(sorted(made), indent=0).encode())
        write_whole(folder / VERSIONS, json.dumps({row.title: row.version for row in self.rows.values()}))

    def _write_run(self, run: Run, title: str, file: str, found: str) -> Row:
        if run.problem:
            return Row(found, title, file, run.name, "", "", {}, {}, {"series": {}, "axes": {}}, run.problem)
        content = curves(run.lines)
        row = row_of(run, title, file, found, outline(content))
        script = f"(window.vortaroRuns ??= {{}})[{script_json(title)}] = {script_json(content)};\n"
        write_changed(self.out / FOLDER / f"{file}.js", script.encode())
        links = {label: f"../{path}" for label, path in self.links.items()}
        made = run_page(
            run.record,
            run.lines,
            samples_of(run.folder),
            title=title,
            folder=run.name,
            state=run.state,
            root="..",
            source=f"{file}.js",
            links=links,
            content=content,
            summary=run.summary,
            spent=run.goodput,
            non_finite=run.non_finite,
        )
        write_changed(self.out / FOLDER / f"{file}.html", made.encode())
        return row

    def _all_runs(self) -> str:
        rows = [row for row in self.rows.values() if not row.problem]
        problems = [row for row in self.rows.values() if row.problem]
        rows.sort(key=lambda row: row.started, reverse=True)
        entries = ("entry",) if len({row.entry for row in rows}) > 1 else ()
        columns = (*entries, *RESULTS, *differing([row.knobs for row in rows]), *AMOUNTS)
        axes = [name for name in AXES if any(name in row.outline["axes"] for row in rows)]
        notes = "".join(f"<p class=note>{text(row.title)}: {text(row.problem)}</p>" for row in problems)
        table = "<p>No runs.</p>"
        if rows:
            table = render("runs.jinja", rows=rows, columns=columns, folder=FOLDER, first=MOST_FIRST)
        parts = [
            "<h1>Runs</h1>",
            f'<div data-live="table">{table}{notes}</div>',
            panel("", groups(row.outline for row in rows), axes) if rows else "",
        ]
        scripts = (*SCRIPTS, f"{ASSETS}/live.js", f"{ASSETS}/runs.js")
        return page("Runs", parts, styles=figures.STYLES, scripts=scripts, links=self.links, current="Runs")


def write_runs(out: Place, folders: Iterable[Place], links: Mapping[str, str] | None = None) -> None:
    """Writes OUT/runs.html and OUT/runs/ for run folders; `RunPages` keeps them up to date while runs train."""
    RunPages(out, links).write(folders)


def remove_runs(out: Place) -> None:
    """Removes runs.html and the files in runs/ that an earlier command has recorded; others stay.

    Raises:
      OSError: a file cannot be read or removed.
    """
    folder = out / FOLDER
    if not (folder / FILES).exists():
        return
    _remove(folder, {*_recorded(folder), VERSIONS, FILES})
    (out / RUNS).unlink(missing_ok=True)
    if isinstance(folder, Path) and not any(folder.iterdir()):
        folder.rmdir()


def _recorded(folder: Place) -> set[str]:
    """Returns the names of the files of runs that an earlier command wrote into the folder."""
    return {name for name in listed_names(folder / FILES) if "/" not in name and name.endswith((".html", ".js"))}


def _remove(folder: Place, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def version(run: Run) -> str:
    """Returns a text that changes when the record, metrics, samples or state of a run change; reads no file."""
    files = [run.folder / EXPERIMENT, run.folder / METRICS, *sorted((run.folder / "samples").glob("*.txt"))]
    stamps = []
    for file in files:
        try:
            found: Any = file.stat()
        except OSError:
            stamps.append("")
            continue
        size = found.st_size if isinstance(file, Path) else found.length
        stamps.append(f"{size:x}.{int((found.st_mtime if isinstance(file, Path) else found.mtime) * 1000):x}")
    in_use = is_in_use(run.folder)  # what else the state depends on is in these files, and in what a process saves
    return "-".join([*stamps, run.state if in_use is None else "used" if in_use else ""])


def outline(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the curves of a run with at most two steps of each, which suffice to choose the figures of a page."""
    series = {
        name: {split: (sorted(set(steps))[:2], ()) for split, (steps, _) in splits.items()}
        for name, splits in content["series"].items()
    }
    return {"series": series, "axes": dict.fromkeys(content["axes"])}


def row_of(run: Run, title: str, file: str, found: str, short: Mapping[str, Any]) -> Row:
    """Returns the row of a run."""
    record, train, validation = run.record, run.summary.train, run.summary.validation
    steps = f" of {run.steps:,}" if run.steps is not None and run.state != "finished" else ""
    tokens, seconds = train.get("tokens_seen"), run.lines[-1]["seconds"] if run.lines else None
    started = (record.get("starts") or [{}])[-1].get("started") or ""
    cells = {
        "entry": Cell(run.entry, run.entry),
        "state": Cell(run.state, run.state, run.state),
        "step": Cell(f"{train.get('step', 0):,}{steps}", str(train.get("step", 0)), "n"),
        "best loss": _number(run.summary.best.get("loss")),
        "loss": _number(validation.get("loss")),
        "train loss": _number(train.get("loss")),
        "bits per byte": _number(validation.get("bits_per_byte")),
        "tokens": Cell(amount(int(tokens)), str(tokens), "n") if tokens else Cell("-", kind="n"),
        "training time": Cell(duration(seconds), f"{seconds:.3f}", "n") if seconds else Cell("-", kind="n"),
        "parameters": _amount(record.get("totals", {}).get("parameters")),
    }
    return Row(found, title, file, run.name, run.entry, started, run.knobs, cells, short)


def _number(value: float | None) -> Cell:
    return Cell("-", kind="n") if value is None else Cell(f"{value:.4f}", f"{value:.9g}", "n")


def _amount(value: int | None) -> Cell:
    return Cell("-", kind="n") if value is None else Cell(amount(value), str(value), "n")
