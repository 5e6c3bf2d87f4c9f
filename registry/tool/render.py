"""Output of the registry tool: tables on a terminal, and the same as plain text in a pipe."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.tree import Tree

from registry.records import phase_cells, weight_cells
from registry.records.diff import is_equal
from registry.records.quantities import amount, mesh_text, size
from registry.records.record import checkout_text, own_knobs
from registry.tool.tables import Table

PIPE_WIDTH = 200


def console(file: TextIO | None = None) -> Console:
    """Returns the console for standard output or a file; without a terminal it has no color, and lines may be longer.

    The environment variable COLUMNS sets the width, as on a terminal.
    """
    stated = os.environ.get("COLUMNS", "")
    if file is None and sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    if file is None and stated.isdecimal() and int(stated) > 0:
        return Console(width=int(stated), color_system=None, highlight=False, markup=False)
    return Console(file=file, width=PIPE_WIDTH, color_system=None, highlight=False, markup=False, soft_wrap=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", right: Sequence[str] = (), **more: Any
) -> Table:
    """Returns a table that never shortens names; `more` and widths: registry/tool/tables.py."""
    return Table(columns, rows, title=title, right=right, **more)


def apart(a: float, b: float, show: Callable[[Any], str]) -> tuple[str, str]:
    """Formats both numbers by `show` (`amount` or `size`); exactly if they differ but would look equal."""
    if a == b or show(a) != show(b):
        return show(a), show(b)
    unit = " B" if show is size else ""
    return f"{a:,}{unit}", f"{b:,}{unit}"


def ratio(a: float, b: float) -> str:
    """Formats b / a in three digits, or as many as distinguish it from 1: 0.9999x."""
    if not a:
        return "-"
    digits = next((n for n in range(3, 17) if a == b or float(f"{b / a:.{n}g}") != 1), 17)
    return f"{b / a:.{digits}g}x"


def percent(share: float) -> str:
    """Formats a share in percent with one decimal, or as many as distinguish it from 0 and 100%."""
    digits = next((n for n in range(1, 12) if share in (0, 1) or float(f"{share:.{n + 2}f}") not in (0, 1)), 12)
    return f"{share:.{digits}%}"


def entries(rows: list[dict[str, Any]]) -> None:
    """Prints the table of `list`."""
    if not rows:
        print("No experiment meets the condition of --where.")
        return
    out, families = console(), dict.fromkeys(row["name"].rpartition(".")[0] for row in rows)
    unknown = [row for row in rows if row["parameters"] is None]
    parameters = ("parameters",) if len(unknown) < len(rows) else ()
    columns = ("name", *parameters, "mesh", "description")
    for family in families:
        shown = map(_entry_cells, (row for row in rows if row["name"].rpartition(".")[0] == family))
        cells = (tuple(map(entry.get, columns)) for entry in shown)
        out.print(table(columns, cells, title=family, right=parameters, flexible={"description": 30}))
    if unknown:
        out.print(TOTALS_HINT)


TOTALS_HINT = (
    "Parameters of experiments in other packages are computed on request: "
    "`python -m registry list --where 'params>0'` shows them."
)


def _entry_cells(row: dict[str, Any]) -> dict[str, str]:
    mesh = "x".join("*" if n == -1 else str(n) for n in row["mesh"])
    mesh += f" ({len(row['meshes'])} MESHES)" if row["meshes"] else ""
    parameters = "" if row["parameters"] is None else amount(row["parameters"])
    return {"name": row["name"], "parameters": parameters, "mesh": mesh, "description": row["doc"]}


def summary(
    data: dict[str, Any],
    *,
    doc: str,
    groups: Mapping[str, str],
    meanings: Mapping[str, str],
    is_complete: bool = False,
) -> None:
    """Prints `show`: the knobs that differ from the template, by group, and the totals.

    Args:
      data: a snapshot.
      doc: the docstring of the class.
      groups: the group of each knob (registry.records.knob_docs).
      meanings: the meaning of each knob.
      is_complete: prints all knobs, and the config.
    """
    out = console()
    out.print(f"{data['experiment']}: {' '.join(doc.split())}\n", markup=False)
    own = {name: data["knobs"][name] for name in own_knobs(data["knobs"])}
    for group in dict.fromkeys(groups.values()):
        rows = [
            (name, knob["value"], meanings.get(name, ""), knob["owner"])
            for name, knob in (data["knobs"] if is_complete else own).items()
            if groups.get(name, "Model") == group
        ]
        if rows:
            flexible = {"value": 16, "meaning": None}
            out.print(table(("knob", "value", "meaning", "set by"), rows, title=group, flexible=flexible))
    _phases(data, out)
    if is_complete:
        out.print(_config_table(data))
    out.print(_totals(data))
    if not is_complete:
        rest = len(data["knobs"]) - len(own)
        out.print(f"{rest} other knobs have the values of the template. --all shows them, and the config.")


def experiment(data: dict[str, Any], out: Console | None = None) -> None:
    """Prints all knobs, the config and the totals of a snapshot, without its class: experiment.txt of a run folder."""
    out = out or console()
    knobs = [(name, knob["value"], knob["owner"]) for name, knob in data["knobs"].items()]
    out.print(table(("knob", "value", "set by"), knobs, title=data["experiment"], flexible={"value": 16}))
    _phases(data, out)
    out.print(_config_table(data))
    out.print(_totals(data))


def _phases(data: dict[str, Any], out: Console) -> None:
    """Prints the table of phases of a snapshot, if it has phases."""
    if rows := phase_cells.table_cells(data):
        columns, right = phase_cells.COLUMNS, phase_cells.NUMBERS
        out.print(table(columns, rows, title="Phases", right=right, flexible={"sets": None}))


def _config_table(data: dict[str, Any]) -> Table:
    return table(("config", "value"), data["config"].items(), flexible={"value": 16})


def weights(data: dict[str, Any], out: Console | None = None) -> None:
    """`weights`."""
    out = out or console()
    out.print(weight_table(data))
    out.print(_totals(data))


def weight_table(data: dict[str, Any]) -> Table:
    """Returns the weight table of a snapshot, with the placement of optimizer slots if it differs from the weights'."""
    title = f"{data['experiment']} on {mesh_text(data['mesh'])}"
    columns, rows = weight_cells.COLUMNS, map(weight_cells.cells, data["weights"])
    slots = [row.get("slot_spec", row["spec"]) for row in data["weights"]]
    if slots != [row["spec"] for row in data["weights"]]:
        columns = (*columns[:4], "slots", *columns[4:])
        elsewhere = ("" if slot == row["spec"] else slot for slot, row in zip(slots, data["weights"], strict=True))
        rows = ((*cells[:4], slot, *cells[4:]) for cells, slot in zip(rows, elsewhere, strict=True))
    return table(columns, rows, title=title, right=weight_cells.NUMBERS)


def _totals(data: dict[str, Any]) -> str:
    totals = data["totals"]
    kinds = {"weights": "", "gradients": "gradient_", "optimizer state": "optimizer_"}
    held = [f"{size(totals.get(f'{key}bytes_per_device', 0))} of {kind}" for kind, key in kinds.items()]
    return (
        f"{amount(totals['parameters'])} parameters ({totals['parameters']:,}), {size(totals['bytes'])}; per device "
        f"{held[0]}, {held[1]} and {held[2]} on {mesh_text(data['mesh'])}."
    )


def difference(data: dict[str, Any], out: Console | None = None) -> None:
    """`diff`."""
    out = out or console()
    a, b = f"a: {data['a']}", f"b: {data['b']}"
    out.print(f"{a}\n{b}\n")
    flexible = {"a": 12, "b": 12, "spec": 24, "set by": None}
    if data["knobs"]:
        rows = [
            (
                r["knob"],
                r["a"],
                r["b"],
                r["owner_a"] if r["owner_a"] == r["owner_b"] else f"{r['owner_a']} -> {r['owner_b']}",
            )
            for r in data["knobs"]
        ]
        out.print(table(("knob", "a", "b", "set by"), rows, title="Knobs that differ", flexible=flexible))
    if data["config"]:
        rows = [(r["path"], r["a"] or "(absent)", r["b"] or "(absent)") for r in data["config"]]
        out.print(table(("path", "a", "b"), rows, title="Config fields that differ", flexible=flexible))
    if data["phases"]:
        rows = [(str(r["phase"]), r["a"] or "(absent)", r["b"] or "(absent)") for r in data["phases"]]
        out.print(table(("phase", "a", "b"), rows, title="Phases that differ", right=("phase",), flexible=flexible))
    if data["mesh"]:
        out.print(f"Mesh: {mesh_text(data['mesh'][0])} -> {mesh_text(data['mesh'][1])}\n")
    if data["weights"]:
        columns = ("weight", "shape a", "shape b", "spec", "per device a", "per device b")
        rows = [_weight_change(row) for row in data["weights"]]
        right = ("shape a", "shape b", "per device a", "per device b")
        out.print(table(columns, rows, title="Weights", right=right, flexible=flexible))
    if data["totals"]:
        rows = [(key, *_total_change(key, t["a"], t["b"])) for key, t in data["totals"].items()]
        out.print(table(("total", "a", "b", "b / a"), rows, title="Totals", right=("a", "b", "b / a")))
    if data["plan"] == []:
        out.print("The compiled updates of both small forms are equal.")
    if data["plan"]:
        rows = [(row["figure"], *_figure_change(row["figure"], row["a"], row["b"])) for row in data["plan"]]
        columns = ("small form, 8 devices", "a", "b", "b / a")
        out.print(table(columns, rows, title="Compiled updates", right=columns[1:]))
    if data["code"]:
        _made_by(data["code"], out)
    if is_equal(data):
        out.print("No difference.")


def _made_by(data: dict[str, Any], out: Console) -> None:
    """Prints the code of both sides, and the packages whose versions differ."""
    a, b = data["a"], data["b"]
    names = {**a["code"], **b["code"]}
    rows = [(name, *(checkout_text(side["code"].get(name)) for side in (a, b))) for name in names]
    packages = {**a["versions"], **b["versions"]}
    versions = [(name, *(side["versions"].get(name, "-") for side in (a, b))) for name in packages]
    out.print(table(("code", "a", "b"), [*rows, *(row for row in versions if row[1] != row[2])], title="Code"))
    for name, side in data.items():
        if side["kinds"] > 1:
            out.print(
                f"{name} was started {side['starts']} times, with {side['kinds']} states of the code. This is the last "
                f"one; `starts` in its experiment.json lists all."
            )


def _weight_change(row: dict[str, Any]) -> tuple[str, ...]:
    a, b = row["a"], row["b"]
    shapes = ["x".join(map(str, side["shape"])) if side else "-" for side in (a, b)]
    if a and b:
        held = apart(a["bytes_per_device"], b["bytes_per_device"], size)
    else:
        held = [size(side["bytes_per_device"]) if side else "-" for side in (a, b)]
    specs = list(dict.fromkeys(side["spec"] for side in (a, b) if side))
    return row["path"].removeprefix("params/"), *shapes, " -> ".join(specs), *held


def _total_change(key: str, a: int, b: int) -> tuple[str, str, str]:
    return *apart(a, b, amount if key == "parameters" else size), ratio(a, b)


def _figure_change(name: str, a: float | None, b: float | None) -> tuple[str, str, str]:
    """Returns the values and the ratio of a figure of a plan: bytes, or a number."""

    def show(value: float) -> str:
        return size(int(value)) if "bytes" in name else f"{value:,.0f}"

    if a is None or b is None:
        return "-" if a is None else show(a), "-" if b is None else show(b), ""
    return *apart(a, b, show), ratio(a, b)


def checks(rows: list[dict[str, Any]]) -> None:
    """Prints the results of `check` and `golden`."""
    out = console()
    for row in rows:
        mark = "ok  " if row["ok"] else "FAIL"
        out.print(f"{mark} {row['name']}" + (f": {row['reason']}" if row["reason"] else ""))


def tree(data: dict[str, Any]) -> None:
    """`tree`."""

    def grow(branch: Tree, name: str) -> Tree:
        for child in data["children"].get(name, []):
            grow(branch.add(child), child)
        return branch

    console().print(grow(Tree(data["root"]), data["root"]))


def steps(rows: list[dict[str, Any]]) -> None:
    """`explain`."""
    cells = [(row["what"], row["value"], row["where"]) for row in rows]
    console().print(table(("what", "value", "set by"), cells, flexible={"value": 48, "set by": None}))


def created(data: dict[str, Any]) -> None:
    """`new`."""
    name = data["name"]
    if "parameters" in data:
        same = data["same_model"]
        known = f" The registered {same[0]} is the same model." if same else ""
        console().print(f"{name}: {data['parameters']:,} parameters, from {data['source']}.{known}", soft_wrap=True)
    console().print(
        f"Wrote {data['path']}. Edit it, then:\n  python -m registry check {name}\n"
        f"  python -m runners.main --exp={name} --smoke --workdir=runs/{name.rpartition('.')[2]}",
        soft_wrap=True,
    )
