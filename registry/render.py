"""How the registry tool looks: tables on a terminal, the same as plain text in a pipe."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

PIPE_WIDTH = 200


def console() -> Console:
    """Standard output; wide and without colour where it is no terminal."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    width = int(os.environ.get("COLUMNS", PIPE_WIDTH))
    return Console(width=width, color_system=None, highlight=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", right: Sequence[str] = ()
) -> Table:
    """A table with a line under its head; columns named in `right` are set flush right."""
    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        drawn.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return drawn


def amount(number: int) -> str:
    """A count as people say it: 820.4 k, 137.7 B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return str(number)


def size(number: int) -> str:
    """Bytes in binary units."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if number >= 1024**power:
            return f"{number / 1024**power:.4g} {unit}"
    return f"{number} B"


def mesh_text(mesh: dict[str, int]) -> str:
    """`data=2 model=4`."""
    return " ".join(f"{axis}={n}" for axis, n in mesh.items())


def entries(rows: list[dict[str, Any]]) -> None:
    """`list`."""
    cells = [
        (row["name"], row["base"], "x".join("*" if n == -1 else str(n) for n in row["mesh"]), row["doc"])
        for row in rows
    ]
    console().print(table(("name", "extends", "mesh", "what it is"), cells))


def experiment(data: dict[str, Any], out: Console | None = None) -> None:
    """`show`."""
    out = out or console()
    knobs = [(name, knob["value"], knob["owner"]) for name, knob in data["knobs"].items()]
    out.print(table(("knob", "value", "set by"), knobs, title=data["experiment"]))
    out.print(table(("config", "value"), data["config"].items()))
    out.print(_totals(data))


def weights(data: dict[str, Any], out: Console | None = None) -> None:
    """`weights`."""
    out = out or console()
    out.print(weight_table(data))
    out.print(_totals(data))


WEIGHT_COLUMNS = ("weight", "shape", "dtype", "spec", "role", "init", "std", "rate", "decay", "bytes", "per device")
WEIGHT_NUMBERS = ("shape", "std", "rate", "bytes", "per device")


def weight_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One row of the weight table as people read it, under WEIGHT_COLUMNS."""
    return (
        row["path"].removeprefix("params/"),
        "x".join(map(str, row["shape"])),
        row["dtype"],
        row["spec"],
        row["role"],
        row["init"],
        f"{row['stddev']:.4g}",
        f"{row['rate']:.4g}",
        "yes" if row["decay"] else "no",
        size(row["bytes"]),
        size(row["bytes_per_device"]),
    )


def weight_table(data: dict[str, Any]) -> Table:
    """The weight table of a snapshot; where slots of the optimizer live, if that is elsewhere."""
    title = f"{data['experiment']} on {mesh_text(data['mesh'])}"
    columns, rows = WEIGHT_COLUMNS, map(weight_cells, data["weights"])
    slots = [row.get("slot_spec", row["spec"]) for row in data["weights"]]
    if slots != [row["spec"] for row in data["weights"]]:
        columns = (*columns[:4], "slots", *columns[4:])
        elsewhere = ("" if slot == row["spec"] else slot for slot, row in zip(slots, data["weights"], strict=True))
        rows = ((*cells[:4], slot, *cells[4:]) for cells, slot in zip(rows, elsewhere, strict=True))
    return table(columns, rows, title=title, right=WEIGHT_NUMBERS)


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
    out.print(f"{a}\n{b}\n", markup=False)
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
        out.print(table(("knob", "a", "b", "set by"), rows, title="Knobs: what was decided differently"))
    if data["config"]:
        rows = [(r["path"], r["a"] or "(absent)", r["b"] or "(absent)") for r in data["config"]]
        out.print(table(("path", "a", "b"), rows, title="Config: what follows from it"))
    if data["mesh"]:
        out.print(f"Mesh: {mesh_text(data['mesh'][0])} -> {mesh_text(data['mesh'][1])}\n")
    if data["weights"]:
        columns = ("weight", "shape a", "shape b", "spec", "per device a", "per device b")
        rows = [_weight_change(row) for row in data["weights"]]
        out.print(table(columns, rows, title="Weights", right=("shape a", "shape b", "per device a", "per device b")))
    if data["totals"]:
        rows = [(key, *_total_change(key, t["a"], t["b"])) for key, t in data["totals"].items()]
        out.print(table(("total", "a", "b", "b / a"), rows, title="Totals", right=("a", "b", "b / a")))
    if data["code"]:
        _made_by(data["code"], out)
    if not any(data[key] for key in ("knobs", "config", "weights", "totals", "mesh")):
        out.print("No difference.")


def _made_by(data: dict[str, Any], out: Console) -> None:
    """The code of both sides, and the packages whose versions differ."""
    a, b = data["a"], data["b"]
    rows = [(name, *(_checkout(side["code"].get(name)) for side in (a, b))) for name in {**a["code"], **b["code"]}]
    packages = {**a["versions"], **b["versions"]}
    versions = [(name, *(side["versions"].get(name, "-") for side in (a, b))) for name in packages]
    out.print(table(("code", "a", "b"), [*rows, *(row for row in versions if row[1] != row[2])], title="Code"))
    for name, side in data.items():
        if side["kinds"] > 1:
            out.print(
                f"{name} was started {side['starts']} times, with {side['kinds']} states of the code. This is the last "
                f"one; `starts` in its experiment.json lists all."
            )


def _checkout(code: dict[str, Any] | None) -> str:
    """`0.1.0, commit 1a2b3c4d5e6f with changes, digest 0123456789ab`."""
    if code is None:
        return "-"
    commit = f"commit {code['commit'][:12]}{' with changes' if code['dirty'] else ''}" if code["commit"] else None
    return ", ".join(filter(None, (code.get("version"), commit, f"digest {code['digest']}")))


def _weight_change(row: dict[str, Any]) -> tuple[str, ...]:
    a, b = row["a"], row["b"]
    shapes = ["x".join(map(str, side["shape"])) if side else "-" for side in (a, b)]
    held = [size(side["bytes_per_device"]) if side else "-" for side in (a, b)]
    specs = list(dict.fromkeys(side["spec"] for side in (a, b) if side))
    return row["path"].removeprefix("params/"), *shapes, " -> ".join(specs), *held


def _total_change(key: str, a: int, b: int) -> tuple[str, str, str]:
    say = amount if key == "parameters" else size
    return say(a), say(b), f"{b / a:.3g}x" if a else "-"


def checks(rows: list[dict[str, Any]]) -> None:
    """`check` and `golden`."""
    out = console()
    for row in rows:
        mark = "ok  " if row["ok"] else "FAIL"
        out.print(
            f"{mark} {row['name']}" + (f": {row['reason']}" if row["reason"] else ""), markup=False, soft_wrap=True
        )


def tree(data: dict[str, Any]) -> None:
    """`tree`."""

    def grow(branch: Tree, name: str) -> Tree:
        for child in data["children"].get(name, []):
            grow(branch.add(child), child)
        return branch

    console().print(grow(Tree(data["root"]), data["root"]))


def steps(rows: list[dict[str, Any]]) -> None:
    """`explain`."""
    console().print(table(("what", "value", "set by"), [(row["what"], row["value"], row["where"]) for row in rows]))


def created(data: dict[str, Any]) -> None:
    """`new`."""
    name = data["name"]
    console().print(
        f"Wrote {data['path']}. Edit it, then:\n  python -m registry check {name}\n"
        f"  python -m runners.main --exp={name} --smoke --workdir=runs/{name.rpartition('.')[2]}",
        soft_wrap=True,
    )
