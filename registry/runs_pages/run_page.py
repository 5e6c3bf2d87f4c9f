"""The page of a run: figures, curves, samples, knobs, weights and config; as report.html and as a page of the site."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.pages import figures
from registry.pages.page import ASSETS, cards, page, script_data, table, text
from registry.pages.phases import phases
from registry.pages.weights import weights
from registry.records.quantities import amount, duration, mesh_text
from registry.records.record import own_knobs
from registry.runs.folders import NON_FINITE
from registry.runs.goodput import Goodput
from registry.runs.metrics import TRAIN, VALIDATION, Summary
from registry.runs_pages import task_results
from registry.runs_pages.curves import EVALS, SCRIPTS, Line, curves, groups, panel
from tasks.storage.files import Place

MOST_SAMPLES = 12  # samples on a page, the latest ones


def run_page(
    record: Mapping[str, Any],
    lines: Sequence[Line],
    samples: Sequence[tuple[str, str]],
    *,
    title: str = "",
    folder: str = "",
    state: str = "",
    root: str = ".",
    source: str = "",
    links: Mapping[str, str] | None = None,
    content: Mapping[str, Any] | None = None,
    summary: Summary | None = None,
    spent: Goodput | None = None,
    non_finite: str = "",
) -> str:
    """Returns the page of a run.

    Args:
      record: its experiment.json.
      lines: the lines of metrics.jsonl, those of training with their `seconds`.
      samples: names and texts of its samples, latest first.
      title: name of the run; empty: that of the experiment.
      folder: name of its folder, to be shown.
      state: whether it is running; empty if that is not known.
      root: relative path to the folder that contains `assets/`.
      source: path of the script that holds the curves; empty: the page holds them.
      links: pages in the header.
      content: what `curves` returns for the lines, if it is known.
      summary: the last lines, if they are known.
      spent: the seconds since its first start.
      non_finite: which value was the first that was not finite, if it has stopped because of it.
    """
    content = content or curves(lines)
    last = summary or Summary(dict(last_line(lines, TRAIN)), dict(last_line(lines, VALIDATION)), {}, {})
    seconds = lines[-1].get("seconds") if lines else None
    results = task_results.last(line for line in lines if line["split"] == EVALS)
    shown = groups([content], tasks=_tasks(results))
    name = f"{record['experiment']}{' (smoke)' if record.get('smoke') else ''}"
    parts = [
        f"<h1>{text(title or name)}</h1>",
        _description(record, name if title else "", folder),
        f"<p><strong>{text(non_finite)}</strong> (details in {NON_FINITE})</p>" if non_finite else "",
        _live("cards", cards(card_pairs(record, last, seconds, state))),
        panel(title or "run", shown, content["axes"], source=source) if shown else "<p>No metrics yet.</p>",
        _live("samples", _samples(samples)),
        *_knobs(record["knobs"]),
        f"<h2>Phases</h2>{found}" if (found := phases(record)) else "",
        _time(spent),
        f"<h2>Weights</h2>{weights(dict(record))}" if {"weights", "totals"} <= record.keys() else "",
        "<details><summary>Full config</summary>",
        table(("path", "value"), record.get("config", {}).items()),
        "</details>",
        "" if source else script_data("curves", content),
    ]
    scripts = (*SCRIPTS, *((f"{ASSETS}/live.js", f"runs/{source}") if source else ()), f"{ASSETS}/run.js")
    return page(title or record["experiment"], parts, root=root, styles=figures.STYLES, scripts=scripts, links=links)


def samples_of(folder: Place) -> list[tuple[str, str]]:
    """Returns names and texts of the latest samples in a run folder, latest first."""
    files = sorted((folder / "samples").glob("*.txt"), key=lambda file: file.name, reverse=True)[:MOST_SAMPLES]
    return [(file.name.removesuffix(".txt"), file.read_bytes().decode(errors="replace")) for file in files]


def card_pairs(
    record: Mapping[str, Any], last: Summary, seconds: float | None = None, state: str = ""
) -> list[tuple[str, str]]:
    """Returns the labels and values of the cards of a run, `seconds` of training."""
    train, validation = last.train, last.validation
    measure = "bits_per_byte" if "bits_per_byte" in validation else "loss"
    value = validation.get(measure)
    flops = train.get("flops")
    pairs = [
        ("state", state),
        ("step", f"{train.get('step', 0):,}"),
        (f"validation {measure.replace('_', ' ')}", "-" if value is None else f"{value:.3f}"),
        ("parameters", amount(record["totals"]["parameters"]) if "totals" in record else ""),
        ("tokens seen", amount(int(train.get("tokens_seen") or 0))),
        ("tokens per second", f"{train.get('tokens_per_second') or 0:,.0f}"),
        ("training time", duration(seconds) if seconds else ""),
        ("FLOPs", f"{flops:.3g}" if flops else ""),
        ("mesh", mesh_text(record.get("mesh", {}))),
    ]
    return [(label, shown) for label, shown in pairs if shown]


def last_line(lines: Sequence[Line], split: str) -> Line:
    """Returns the last line of a split; empty if there is none."""
    return next((line for line in reversed(lines) if line["split"] == split), {})


def _live(name: str, content: str) -> str:
    """Marks content that live.js replaces while the run trains."""
    return f'<div data-live="{name}">{content}</div>'


def _description(record: Mapping[str, Any], name: str, folder: str) -> str:
    start = (record.get("starts") or [{}])[-1]
    devices = start.get("devices")
    facts = [
        name,
        f"started {start['started'].replace('T', ' ').replace('+00:00', ' UTC')}" if start.get("started") else "",
        f"{devices['count']} x {devices['kind']}" if devices else "",
    ]
    sets = "".join(f" <code>--set={text(override)}</code>" for override in record["overrides"])
    note = " · ".join(text(fact) for fact in facts if fact)
    place = f"<p class=note>Folder <code>{text(folder)}</code></p>" if folder else ""
    return f"<p class=doc>{text(record.get('doc', ''))}</p><p class=note>{note}{sets}</p>{place}"


def _samples(samples: Sequence[tuple[str, str]]) -> str:
    if not samples:
        return ""
    (name, latest), *earlier = samples
    more = "".join(f"<h3>{text(other)}</h3><pre>{text(sample)}</pre>" for other, sample in earlier)
    hidden = f"<details><summary>{len(earlier)} earlier samples</summary>{more}</details>" if earlier else ""
    return f"<h2>Latest sample</h2><p class=note>{text(name)}</p><pre>{text(latest)}</pre>{hidden}"


def _knobs(knobs: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Yields the knobs that the experiment sets, and all of them, folded."""
    columns = ("knob", "value", "set by")
    rows = {name: (name, knob["value"], knob["owner"]) for name, knob in knobs.items()}
    own = [rows[name] for name in own_knobs(knobs)]
    yield "<h2>Knobs</h2>"
    if own:
        yield table(columns, own)
    yield f"<details><summary>All {len(rows)} knobs</summary>{table(columns, rows.values())}</details>"


def _time(spent: Goodput | None) -> str:
    if spent is None or not spent.wall:
        return ""
    columns = ("time", "duration", "share")
    note = f"<p class=note>{duration(spent.wall)} since the first start.</p>"
    return f"<h2>Goodput</h2>{_live('goodput', note + table(columns, spent.parts(), columns[1:]))}"


def _tasks(results: Sequence[Sequence[str]]) -> str:
    columns, numbers = ("step", *task_results.COLUMNS), ("step", *task_results.NUMBERS)
    return _live("tasks", table(columns, results, numbers)) if results else ""
