"""Origin of a value: the class and line that set a knob, a config field or a weight's spec."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import fiddle as fdl

from layers.errors import UsageError, did_you_mean, file_line
from layers.specs import Specs, axes_of, show_spec
from registry import layouts
from registry.build import build, config_of
from registry.config_paths import field_text, get_field, path_steps
from registry.experiment import Experiment, knob_types, known_rows, written_classes
from registry.overrides import METHODS
from registry.user_code import building
from registry.values import show


def explain(experiment: Experiment, path: str) -> list[dict[str, Any]]:
    """Returns the steps from the value at `path` back to its source: `{what, value, where}`, the value itself first.

    Raises:
      UsageError: `path` is not a knob, config path or weight.
    """
    cls = type(experiment)
    head = path.partition(".")[0]
    if path in knob_types(cls):
        return _knob(cls, path)
    if head in knob_types(cls):
        return _row(cls, head, path.partition(".")[2])
    if head in METHODS:
        return _field(experiment, path)
    with building(type(experiment)):
        table = {row.path: row for row in build(config_of(experiment, "task"), "task").weight_table()}
    matches = [row for name, row in table.items() if path in (name, name.removeprefix("params/"))]
    if not matches:
        near = did_you_mean(path, [*knob_types(cls), *METHODS, *table])
        raise UsageError(f"Unknown knob, config path or weight '{path}'. {near}")
    row = matches[0]
    first = {
        "what": row.path,
        "value": f"{show_spec(row.spec)}, {row.role}, {row.init}, shape {row.shape}",
        "where": "",
    }
    return [first, *_row(cls, "WEIGHTS", row.key)]


def _knob(cls: type[Experiment], name: str) -> list[dict[str, Any]]:
    """Returns every base class and flag that sets the knob, the effective one first."""
    steps: list[dict[str, Any]] = []
    for base in (base for base in cls.__mro__ if name in vars(base)):
        value, setter = show(vars(base)[name]), vars(base).get("set_by")
        if setter == "--set" and isinstance(vars(base)[name], Specs):
            value = vars(base)["overrides"][-1].partition("=")[2]  # the row alone
        elif setter not in (None, "--set") and steps and steps[-1]["where"] == setter:
            continue  # Smoke() of a template and of its family
        steps.append({"what": name, "value": value, "where": setter or where_set(base, name)})
    return steps


def _row(cls: type[Experiment], table: str, row: str) -> list[dict[str, Any]]:
    specs = known_rows(cls, table)
    if row not in specs:
        raise UsageError(f"{table} has no row '{row}'. {did_you_mean(row, specs)}")
    for assignment in reversed(cls.overrides):
        if assignment.partition("=")[0] == f"{table}.{row}":
            return [{"what": f"{table}.{row}", "value": show_spec(specs[row]), "where": "--set"}]
    states = [base for base in written_classes(cls) if table in vars(base) and _assignment_line(base, table, f"{row}=")]
    where = where_set(states[0], table, f"{row}=") if states else _layout_line(cls.LAYOUT, row)
    if states:
        return [{"what": f"{table}.{row}", "value": show_spec(specs[row]), "where": where}]
    layout: Any = cls().layout
    placed = (layout.weights if table == "WEIGHTS" else layout.activations)[row]
    added = {axis for entry in placed for axis in axes_of(entry)} - {axis for e in specs[row] for axis in axes_of(e)}
    axes = {"SEQUENCE_AXIS": cls.SEQUENCE_AXIS, "STACK": cls().stage_axis}
    knobs = [step for knob, axis in axes.items() if axis in added for step in _knob(cls, knob)]
    return [
        {"what": f"{table}.{row}", "value": show_spec(placed), "where": where},
        *knobs,
        *_knob(cls, "LAYOUT"),
    ]


def _layout_line(name: str, row: str) -> str:
    """Returns the layout and the line of its source that states a row: its own, or that of a layout that it extends."""
    text = Path(layouts.__file__).read_text(encoding="utf-8")
    lines, tables = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            tables[node.targets[0].id] = node
    place, constant = f"layout {name}", next(k for k, v in vars(layouts).items() if v is layouts.LAYOUTS[name])
    while constant:
        node = tables[constant]
        for line in range(node.lineno, node.end_lineno + 1):
            if f"{row}=" in lines[line - 1].replace(" ", ""):
                return f"{place}, {file_line(layouts.__file__, line)}"
        used = [each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)]
        constant = next((each for each in used if each in tables), "")
    return place


def _field(experiment: Experiment, path: str) -> list[dict[str, Any]]:
    *_, (_, holder, name) = path_steps(config_of(experiment, path.partition(".")[0]), path)
    value = field_text(get_field(holder, name))
    if path in [assignment.partition("=")[0] for assignment in experiment.overrides]:
        return [{"what": path, "value": value, "where": "--set"}]
    if not isinstance(holder, fdl.Config) or name not in holder.__arguments__:
        made = fdl.get_callable(holder) if isinstance(holder, fdl.Config) else type(holder)
        return [{"what": path, "value": value, "where": f"default of {show(made)}"}]
    location = holder.__argument_history__[name][-1].location
    line, text = _statement(location.filename, location.line_number, name)
    where = f"{location.function_name}(), {file_line(location.filename, line)}"
    steps = [{"what": path, "value": value, "where": where}]
    cls = type(experiment)
    read = re.findall(r"\b(?:self|cls)\.([A-Za-z]\w+)\b", text)  # knobs, and properties named after them
    for knob in dict.fromkeys(name.upper() for name in read):
        if knob in knob_types(cls):
            steps += _knob(cls, knob)
    return steps


def _statement(filename: str, line: int, name: str) -> tuple[int, str]:
    """Returns line and text of the keyword argument `name` in the call at `line`; otherwise of the line itself."""
    with open(filename, encoding="utf-8") as file:
        source = file.read()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno):
            for keyword in node.keywords:
                if keyword.arg == name and node.lineno == line:
                    return keyword.value.lineno, ast.get_source_segment(source, keyword.value) or ""
    return line, source.splitlines()[line - 1]


def where_set(cls: type, name: str, containing: str = "") -> str:
    """Returns the class and the line of its body that assign `name`; the module if the source cannot be read."""
    return f"{cls.__name__}, {_assignment_line(cls, name, containing) or cls.__module__}"


def _assignment_line(cls: type, name: str, containing: str = "") -> str | None:
    """Returns the position where the class body assigns `name` (on a line with `containing`), as `file:line`."""
    try:
        lines, start = inspect.getsourcelines(cls)
        filename = inspect.getsourcefile(cls) or ""
    except (OSError, TypeError):
        return None
    tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)))
    for node in getattr(tree.body[0], "body", []):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                if containing in lines[line - 1].replace(" ", ""):
                    return file_line(filename, start + line - 1)
    return None
