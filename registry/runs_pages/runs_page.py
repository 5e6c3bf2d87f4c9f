"""The page of all runs: a table with the knobs that differ, and the curves of the chosen runs over each other."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.pages import figures
from registry.pages.page import ASSETS, page, render, script_json, text, write_assets, write_changed
from registry.records.diff import differing
from registry.records.quantities import amount, duration
from registry.records.record import EXPERIMENT
from registry.runs.folders import METRICS
from registry.runs.run import Run
from registry.runs_pages.curves import AXES, SCRIPTS, curves, groups, panel
from registry.runs_pages.run_page import last_line, run_page, samples_of
from tasks.storage.files import Place, make_folder, write_whole

RUNS = "runs.html"
FOLDER = "runs"  # of the pages and data of each run
VERSIONS = "version.json"  # in FOLDER: which state of a run its page shows, by name
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
    entry: str
    started: str
    knobs: Mapping[str, str]
    cells: Mapping[str, Cell]
    outline: Mapping[str, Any]  # its curves, without most points
    problem: str = ""  # why it cannot be read; empty if it can

    @property
    def file(self) -> str:
        """The name of its files without suffix."""
        return file_name(self.title)


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
        runs = {str(folder): Run(folder) for folder in folders}
        titles = dict(zip(runs, unique([folder_name(run.folder) for run in runs.values()]), strict=True))
        changed, is_new = [], runs.keys() != self.rows.keys() or not runs
        for folder, run in runs.items():
            found = version(run)
            row = self.rows.get(folder)
            if row is None or (row.version, row.title) != (found, titles[folder]):
                self.rows[folder] = self._write_run(run, titles[folder], found)
                changed.append(titles[folder])
        self.rows = {folder: self.rows[folder] for folder in runs}
        if changed or is_new:
            write_assets(self.out)
            write_whole(self.out / RUNS, self._all_runs())
            self._write_versions()
        return changed

    def _write_versions(self) -> None:
        """Records the versions of the pages, and removes the files of runs that have left."""
        file = self.out / FOLDER / VERSIONS
        earlier = json.loads(file.read_text()) if file.exists() else {}
        files = {file_name(row.title) for row in self.rows.values()}
        for name in {file_name(title) for title in earlier} - files:
            for suffix in (".html", ".js"):
                (self.out / FOLDER / f"{name}{suffix}").unlink(missing_ok=True)
        write_whole(file, json.dumps({row.title: row.version for row in self.rows.values()}))

    def _write_run(self, run: Run, title: str, found: str) -> Row:
        if run.problem:
            return Row(found, title, "", "", {}, {}, {"series": {}, "axes": {}}, run.problem)
        content = curves(run.lines)
        row = row_of(run, title, found, outline(content))
        script = f"(window.vortaroRuns ??= {{}})[{script_json(title)}] = {script_json(content)};\n"
        write_changed(self.out / FOLDER / f"{row.file}.js", script.encode())
        links = {label: f"../{path}" for label, path in self.links.items()}
        made = run_page(
            run.record,
            run.lines,
            samples_of(run.folder),
            title=title,
            state=run.state,
            root="..",
            source=f"{row.file}.js",
            links=links,
            content=content,
        )
        write_changed(self.out / FOLDER / f"{row.file}.html", made.encode())
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


def file_name(title: str) -> str:
    """Returns the name of the files of a run, without suffix."""
    return re.sub(r"[^\w.=-]", "_", title)


def folder_name(folder: Place) -> str:
    """Returns the last part of the name of a folder."""
    return Path(folder).resolve().name if isinstance(folder, Path) else folder.name


def unique(names: Sequence[str]) -> list[str]:
    """Returns the names, a number added to each whose files would be those of an earlier one."""
    taken: set[str] = set()
    made = []
    for name in names:
        number, candidate = 1, name
        while file_name(candidate).lower() in taken:
            number += 1
            candidate = f"{name}-{number}"
        taken.add(file_name(candidate).lower())
        made.append(candidate)
    return made


def version(run: Run) -> str:
    """Returns a text that changes when the record, metrics, samples or state of a run change."""
    files = [run.folder / EXPERIMENT, run.folder / METRICS, *sorted((run.folder / "samples").glob("*.txt"))]
    stamps = []
    for file in files:
        try:
            found: Any = file.stat()
        except OSError:
            continue
        size = found.st_size if isinstance(file, Path) else found.length
        stamps.append(f"{size:x}.{int((found.st_mtime if isinstance(file, Path) else found.mtime) * 1000):x}")
    return "-".join([*stamps, "" if run.problem else run.state])


def outline(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the curves of a run with at most two steps of each, which suffice to choose the figures of a page."""
    series = {
        name: {split: (sorted(set(steps))[:2], ()) for split, (steps, _) in splits.items()}
        for name, splits in content["series"].items()
    }
    return {"series": series, "axes": dict.fromkeys(content["axes"])}


def row_of(run: Run, title: str, found: str, short: Mapping[str, Any]) -> Row:
    """Returns the row of a run."""
    lines, record = run.lines, run.record
    train, validation = last_line(lines, "train"), last_line(lines, "validation")
    losses = [line["loss"] for line in lines if line["split"] == "validation" and line.get("loss") is not None]
    steps = f" of {run.steps:,}" if run.steps is not None and run.state != "finished" else ""
    tokens, seconds = train.get("tokens_seen"), train.get("seconds")
    entry = f"{record['experiment']}{' --smoke' if record.get('smoke') else ''}"
    started = (record.get("starts") or [{}])[-1].get("started") or ""
    cells = {
        "entry": Cell(entry, entry),
        "state": Cell(run.state, run.state, run.state),
        "step": Cell(f"{train.get('step', 0):,}{steps}", str(train.get("step", 0)), "n"),
        "best loss": _number(min(losses, default=None)),
        "loss": _number(validation.get("loss")),
        "train loss": _number(train.get("loss")),
        "bits per byte": _number(validation.get("bits_per_byte")),
        "tokens": Cell(amount(int(tokens)), str(tokens), "n") if tokens else Cell("-", kind="n"),
        "training time": Cell(duration(seconds), f"{seconds:.3f}", "n") if seconds else Cell("-", kind="n"),
        "parameters": _amount(record.get("totals", {}).get("parameters")),
    }
    return Row(found, title, entry, started, run.knobs, cells, short)


def _number(value: float | None) -> Cell:
    return Cell("-", kind="n") if value is None else Cell(f"{value:.4f}", f"{value:.9g}", "n")


def _amount(value: int | None) -> Cell:
    return Cell("-", kind="n") if value is None else Cell(amount(value), str(value), "n")
