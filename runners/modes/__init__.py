"""Modes of the runner, one module each: `Options`, whose fields are the flags, and `run(request, options)`."""

import ast
import pkgutil
from pathlib import Path

MODES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def meaning(mode: str) -> str:
    """Returns the first line of a mode's docstring, without importing its module."""
    source = Path(__file__).with_name(f"{mode}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
