"""Scaffold of `registry new`: the first lines of a new experiment in the user's module."""

import ast
import textwrap
from pathlib import Path

from layers.errors import UsageError
from layers.roots import ROOTS
from registry.experiment import Experiment, cls_key
from tasks.storage.files import write_whole


def scaffold(base: type[Experiment], name: str, folder: Path) -> Path:
    """Writes `class Name(Base)` to `module.py` in `folder` for a name `module.Name`; appends to an existing module.

    Raises:
      UsageError: the name is not of that form, or already exists.
    """
    module, _, cls = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"'{name}' is not of the form module.Name. Write for example my_models.{base.__name__}Wide.")
    if module.partition(".")[0] in ROOTS:
        raise UsageError(f"'{name}' has the name of one of Vortaro's own packages. Choose another module.")
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    source = path.read_text() if path.exists() else ""
    if any(isinstance(node, ast.ClassDef) and node.name == cls for node in ast.parse(source).body):
        raise UsageError(f"{path} already has a class {cls}. Choose another name.")
    import_lines = ["from registry.experiment import register"]
    if base.__module__ != module:
        import_lines.append(f"from {base.__module__} import {base.__name__}")
    imports = "".join(f"{line}\n" for line in import_lines if line not in source)
    body = f'''
    @register
    class {cls}({base.__name__}):
        """{base.__name__} with ... (describe this in one sentence)."""

        # Set the knobs that differ; `python -m registry show {cls_key(base)}` lists all knobs.
        SEED = {base.SEED}
    '''
    source = source or f'"""Experiments on top of {cls_key(base)}."""\n'
    start = _after_docstring(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    blank = "\n" if imports and start else ""
    content = f"{source[:start]}{blank}{imports}{source[start:]}".rstrip() + "\n\n" + textwrap.dedent(body)
    write_whole(path.resolve(), content)  # a link stays a link
    return path


def _after_docstring(source: str) -> int:
    """Returns the line for imports: after the module's docstring, if it has one."""
    tree = ast.parse(source)
    if ast.get_docstring(tree) is None:
        return 0
    return len("".join(source.splitlines(keepends=True)[: tree.body[0].end_lineno]))
