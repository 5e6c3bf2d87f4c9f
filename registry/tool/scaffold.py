"""Scaffold of `registry new`: the first lines of a new experiment in the user's module, or a model's entry."""

import ast
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from layers.roots import ROOTS
from registry.experiment import Experiment, cls_key
from registry.values import show
from tasks.storage.files import write_whole

WIDTH = 120  # characters of a line


def scaffold(base: type[Experiment], name: str, folder: Path) -> Path:
    """Writes `class Name(Base)` to `module.py` in `folder` for a name `module.Name`; appends to an existing module.

    Raises:
      UsageError: the name is not of that form, or already exists.
    """
    body = f'''
    """{base.__name__} with ... (describe this in one sentence)."""

    # Set the knobs that differ; `python -m registry show {cls_key(base)}` lists all knobs.
    SEED = {base.SEED}
    '''
    return write_class(base, name, textwrap.dedent(body).strip(), folder)


def knob_lines(knobs: Mapping[str, Any]) -> str:
    """Returns the lines of a class that state knobs; long runs of equal values in patterns are products."""
    return "\n".join(line for name, value in knobs.items() for line in _assignment(name, value))


def write_class(base: type[Experiment], name: str, body: str, folder: Path) -> Path:
    """Writes a registered class with this body, like `scaffold`.

    Raises:
      UsageError: the name is not of the form module.Name, or already exists.
    """
    path, module, cls = place_of(name, base.__name__, folder)
    source = path.read_text() if path.exists() else ""
    if any(isinstance(node, ast.ClassDef) and node.name == cls for node in ast.parse(source).body):
        raise UsageError(f"{path} already has a class {cls}. Choose another name.")
    import_lines = ["from registry.experiment import register"]
    if base.__module__ != module:
        import_lines.append(f"from {base.__module__} import {base.__name__}")
    present = source.splitlines()
    imports = [line for line in import_lines if line not in present]
    source = source or f'"""Experiments on top of {cls_key(base)}."""\n'
    before = _with_imports(source, imports)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = f"@register\nclass {cls}({base.__name__}):\n{textwrap.indent(body, '    ')}\n"
    write_whole(path.resolve(), f"{before}\n\n\n{lines}")  # a link stays a link
    return path


def place_of(name: str, example: str, folder: Path) -> tuple[Path, str, str]:
    """Returns file, module and class of a name `module.Name`.

    Raises:
      UsageError: the name is not of that form, or the module is Vortaro's own.
    """
    module, _, cls = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"'{name}' is not of the form module.Name. Write for example my_models.{example}Wide.")
    if module.partition(".")[0] in ROOTS:
        raise UsageError(f"'{name}' has the name of one of Vortaro's own packages. Choose another module.")
    return folder.joinpath(*module.split(".")).with_suffix(".py"), module, cls


def _assignment(name: str, value: Any) -> list[str]:
    if not isinstance(value, tuple):
        return [f"{name} = {_literal(value)}"]
    runs = [(each, len(list(run))) for each, run in groupby(value)]
    items = [
        item
        for each, count in runs
        for item in ([f"*({_literal(each)},) * {count}"] if count > 2 else [_literal(each)] * count)
    ]
    line = f"{name} = ({', '.join(items)}{',' if len(items) == 1 else ''})"
    if len(line) <= WIDTH - 4:
        return [line]
    return [
        f"{name} = (",
        *textwrap.wrap(", ".join(items) + ",", WIDTH - 8, initial_indent="    ", subsequent_indent="    "),
        ")",
    ]


def _literal(value: Any) -> str:
    """Returns a value as source code, with separators in long integers."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if abs(value) > 9999 else str(value)
    if isinstance(value, float) and value.is_integer() and 9999 < abs(value) < 1e15:
        return f"{value:_}"
    return show(value)


def _with_imports(source: str, imports: Sequence[str]) -> str:
    """Returns a module's source with more imports: after its own, or else after its docstring."""
    header = 0  # lines of the docstring and of the imports after it
    has_imports = False
    for node in ast.parse(source).body:
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if not is_import and not (header == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            break
        header, has_imports = node.end_lineno or 0, has_imports or is_import
    lines = source.splitlines()
    blank = [""] if imports and header and not has_imports else []
    return "\n".join([*lines[:header], *blank, *imports, *lines[header:]]).rstrip()
