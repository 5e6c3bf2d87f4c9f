"""Output of the verbs of run folders: tables of runs, comparisons, lineages, commands."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.records.json_values import text_of
from registry.records.quantities import amount, duration
from registry.tool.render import console, percent, table

Row = dict[str, Any]
NONE = "-"
GROUPED = ("loss", "bits_per_byte", "best_loss", "tokens", "seconds")
LABELS = {"flops": "FLOPs"}
AXES = {"step": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "seconds of training"}


def runs(rows: Sequence[Row]) -> None:
    """Prints the table of `runs`."""
    out = console()
    if not rows:
        out.print("No run meets the condition of --where.")
        return
    readable = [row for row in rows if "problem" not in row]
    knobs = list(dict.fromkeys(name for row in readable for name in row["knobs"]))
    has = lambda name: any(_scalar(row, name) is not None for row in readable)
    scalars = [name for name in ("loss", "bits_per_byte") if has(name)]
    columns = ("run", "experiment", "state", "step", "tokens", "time", "train loss", *scalars, "best loss", *knobs)
    cells = [
        (
            row["run"],
            _entry(row),
            row["state"],
            _step(row),
            _amount(row["tokens"]),
            _duration(row["seconds"]),
            _number(row["train_loss"]),
            *(_number(_scalar(row, name)) for name in scalars),
            _best(row),
            *_knob_cells(row, knobs),
        )
        for row in readable
    ]
    if readable:
        right = ("step", "tokens", "time", "train loss", *scalars)
        out.print(table(columns, cells, right=right))
    for row in rows:
        if "problem" in row:
            out.print(f"{row['state']}: {row['problem']}")


def groups(rows: Sequence[Row]) -> None:
    """Prints the table of `runs --group`."""
    out = console()
    if not rows:
        out.print("No run meets the condition of --where.")
        return
    knobs = list(dict.fromkeys(name for row in rows for name in row["knobs"]))
    figures = [name for name in GROUPED if any(name in row for row in rows)]
    codes = {code for row in rows for code in row["code"]}
    code = ("code",) if len(codes) > 1 else ()
    columns = ("experiment", "n", "state", *(name.replace("_", " ") for name in figures), *knobs, *code)
    cells = [
        (
            _entry(row),
            row["n"],
            ", ".join(state if count == row["n"] else f"{count} {state}" for state, count in row["states"].items()),
            *(_mean(name, row.get(name)) for name in figures),
            *_knob_cells(row, knobs),
            *(" ".join(row["code"]) for _ in code),
        )
        for row in rows
    ]
    out.print(table(columns, cells, right=("n",)))
    out.print("Mean ± standard deviation of the runs of a line; runs that are equal in all knobs count as one.")


def _knob_cells(row: Row, knobs: Iterable[str]) -> list[str]:
    return [text_of(row["knobs"][name]) if name in row["knobs"] else NONE for name in knobs]


def _entry(row: Row) -> str:
    return f"{row['entry']}{' --smoke' if row['smoke'] else ''}"


def _scalar(row: Row, name: str) -> float | None:
    return row["validation"].get(name)


def _step(row: Row) -> str:
    return f"{row['step']:,}" if row["steps"] is None else f"{row['step']:,} of {row['steps']:,}"


def _best(row: Row) -> str:
    return NONE if row["best_loss"] is None else f"{_number(row['best_loss'])} at {row['best_step']:,}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:#.4g}"


def _amount(value: float | None) -> str:
    return NONE if value is None else amount(int(value))


def _mean(name: str, figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return NONE
    if name == "seconds":
        return _duration(figure["mean"])
    if name == "tokens":
        return _amount(figure["mean"])
    spread = "" if figure["deviation"] is None else f" ± {figure['deviation']:.2g}"
    return f"{_number(figure['mean'])}{spread}"


def _duration(seconds: float | None) -> str:
    return NONE if seconds is None else duration(seconds)


def comparison(data: Row) -> None:
    """Prints `compare`."""
    out = console()
    marks = [_mark(i) for i in range(len(data["runs"]))]
    for mark, run in zip(marks, data["runs"], strict=True):
        out.print(f"{mark}: {run['run']} ({run['state']}, step {run['step']:,})")
    out.print("")
    titles = {
        "entry": "Experiments",
        "knobs": "Knobs that differ",
        "config": "Config fields that differ",
        "weights": "Weights that differ",
        "totals": "Totals that differ",
        "mesh": "Mesh axes that differ",
        "data": "Data that differ",
        "code": "Code that differs",
        "devices": "Devices that differ",
        "versions": "Versions that differ",
    }
    for part, title in titles.items():
        rows = [(name, *map(_cell, values)) for name, values in data[part].items()]
        if rows:
            out.print(table(("name", *marks), rows, title=title, flexible=dict.fromkeys(marks, 12)))
    if not any(data[part] for part in titles):
        out.print("No difference.")
    if data["results"]:
        _results(data["results"], {run["run"]: mark for run, mark in zip(data["runs"], marks, strict=True)})
    else:
        out.print("No scalar of validation or training is measured in all runs.")


def _cell(value: Any) -> str:
    return NONE if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _mark(number: int) -> str:
    """Returns a, b, ..., z, then r27 and so on."""
    return chr(ord("a") + number) if number < 26 else f"r{number + 1}"


def _results(data: Row, marks: Mapping[str, str]) -> None:
    out = console()
    name = data["metric"].replace("_", " ")
    axes = [axis for axis, limit in data["equal"].items() if limit is not None]
    best = ("best",) if data["higher_is_better"] is not None else ()
    columns = ("runs", "final", *best, *(f"at {_limit(axis, data['equal'][axis])}" for axis in axes))
    rows = [
        (
            " ".join(marks[run] for run in row["runs"]),
            _interval(row["final"]),
            *(_interval(row["best"]) for _ in best),
            *(_interval(row["at"][axis]) for axis in axes),
        )
        for row in data["rows"]
    ]
    out.print(table(columns, rows, title=f"{data['split'].capitalize()} {name}", right=columns[1:]))
    if any(len(row["runs"]) > 1 for row in data["rows"]):
        out.print(
            "Mean and 95% confidence interval (Student's t) of runs that differ in SEED alone; differences of "
            "the best two lines by Welch's t-test."
        )
    if not best:
        out.print(f"Whether more of {data['metric']} is better is not known.")
    for axis, found in data["verdicts"].items():
        out.print(_verdict(axis, found, marks))


def _limit(axis: str, limit: float) -> str:
    if axis == "step":
        return f"step {limit:,.0f}"
    return f"{duration(limit)} of training" if axis == "seconds" else f"{amount(int(limit))} {LABELS.get(axis, axis)}"


def _interval(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return NONE
    return (
        _number(figure["mean"])
        if figure["half_width"] is None
        else (f"{_number(figure['mean'])} ± {figure['half_width']:.2g}")
    )


def _verdict(axis: str, found: Row, marks: Mapping[str, str]) -> str:
    """Returns a sentence: which runs are better on an axis, by how much, and whether seeds could explain it."""
    best, second = (" ".join(marks[run] for run in found[side]) for side in ("best", "second"))
    verb = "is" if len(found["best"]) == 1 else "are"
    if not found["share"]:
        return f"At equal {AXES[axis]}, {best} and {second} are equal."
    doubt = {None: "", True: " (significant at 5%)", False: " (not significant at 5%)"}[found["is_certain"]]
    return f"At equal {AXES[axis]}, {best} {verb} better than {second} by {percent(found['share'])}{doubt}."


def lineage(rows: Sequence[Row]) -> None:
    """Prints `lineage`, a line for each ancestor."""
    out = console()
    for depth, row in enumerate(rows):
        where = row.get("run") or row.get("file")
        entry = f" ({row['entry']})" if row["entry"] else ""
        if depth == 0:
            out.print(f"{where}{entry}")
            continue
        step = "" if row["step"] is None else f" at step {row['step']:,}"
        state = " It does not exist any more." if not row["found"] else ""
        state = " Its config has changed since." if row["changed"] else state
        out.print(f"{'  ' * depth}from {where}{entry}{step}: {row['by']}.{state}")
    if len(rows) == 1:
        out.print("Its weights began with initial values.")


def rerun(data: Row) -> None:
    """Prints `rerun`."""
    for command in data["commands"]:
        print(command)
    out = console()
    if data["devices"]:
        devices = data["devices"]
        processes = "one process" if devices["processes"] == 1 else f"{devices['processes']} processes"
        out.print(f"It ran on {devices['count']} x {devices['kind']} in {processes}.")
    for sentence in data["missing"]:
        out.print(f"- {sentence}")
    if not data["missing"]:
        out.print("Code, versions and data are those of the run.")
