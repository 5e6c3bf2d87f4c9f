"""Python API, and the command `vortaro`.

>>> import vortaro
>>> vortaro.get("tiny.StdlibTiny", MODEL_DIM=256).weights     # a table
>>> vortaro.diff("tiny.StdlibTiny", "tiny.StdlibSmall")
>>> vortaro.load("runs/demo").generate("def ")
"""

import importlib
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layers.errors import SpecError, UsageError, VortaroError
    from vortaro.api import check, diff, entries, get, load, plan

# Makes this package's siblings take precedence over a user's modules of the same names, whichever is imported first.
runpy.run_path(str(Path(__file__).parents[1] / "layers" / "roots.py"))["ours_first"]()

__all__ = ["SpecError", "UsageError", "VortaroError", "check", "diff", "entries", "get", "load", "plan"]


def __getattr__(name: str) -> Any:
    """Imports the API at first use, because the command `vortaro list` does not need jax."""
    if name not in __all__:
        raise AttributeError(f"module 'vortaro' has no attribute '{name}'")
    return getattr(importlib.import_module("layers.errors" if name.endswith("Error") else "vortaro.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
