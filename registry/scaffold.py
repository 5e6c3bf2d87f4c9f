"""`registry new`: the first lines of a new experiment, in the user's own module."""

import ast
import textwrap
from pathlib import Path

from layers.errors import UsageError
from registry.experiment import Experiment, cls_key


def scaffold(base: type[Experiment], name: str, folder: Path) -> Path:
    """Writes `class Name(Base)` to `module.py` in `folder` for a name `module.Name`; adds to a module that exists.

    Raises:
      UsageError: the name is not of that form, or is taken.
    """
    module, _, cls = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"'{name}' should read module.Name, as in my_models.{base.__name__}Wide.")
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    source = path.read_text() if path.exists() else ""
    if any(isinstance(node, ast.ClassDef) and node.name == cls for node in ast.parse(source).body):
        raise UsageError(f"{path} has a class {cls} already: choose another name.")
    imports = [
        line
        for line in ("from registry.experiment import register", f"from {base.__module__} import {base.__name__}")
        if line not in source
    ]
    body = f'''
    @register
    class {cls}({base.__name__}):
        """{base.__name__} with ... (say in one sentence what this is)."""

        # Set what differs; `python -m registry show {cls_key(base)}` lists all knobs.
        SEED = {base.SEED}
    '''
    head = "" if source else f'"""Experiments on top of {cls_key(base)}."""\n\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        head
        + "\n".join(imports)
        + "\n" * bool(imports)
        + source.rstrip()
        + "\n" * bool(source)
        + "\n"
        + textwrap.dedent(body)
    )
    return path
