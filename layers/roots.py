"""Import order: Vortaro's packages take precedence over modules of the same names on the path.

`python -m` and notebooks search the working folder first, where a user's `tasks.py` would hide the package `tasks`. The
`__init__.py` of every package runs this file by its path, because an import by name could already find the user's file.
A `runners.py`, `registry.py` or `launch.py` there hides the command itself, before any code of Vortaro can run.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

ROOTS = ("layers", "tasks", "registry", "runners", "launch", "vortaro")
FOLDER = Path(os.path.abspath(__file__)).parent.parent


def is_ours(module: str) -> bool:
    """Returns whether a module, by its name, belongs to Vortaro."""
    return module.partition(".")[0] in ROOTS


class RootFinder:
    """Finds the packages in ROOTS in one folder, independent of the path."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Returns the spec of a package in ROOTS; None for other modules, which later finders handle."""
        return PathFinder.find_spec(name, [str(self.folder)]) if name in ROOTS else None


def ours_first() -> None:
    """Installs the finder, once in a process.

    Raises:
      ImportError: a module with the name of a package was imported before.
    """
    for root in ROOTS:
        found = sys.modules.get(root)
        places = [Path(place).resolve() for place in getattr(found, "__path__", ())]
        if found is not None and (FOLDER / root).resolve() not in places:
            at = getattr(found, "__file__", None) or "another place"
            raise ImportError(f"Module '{root}' was imported from {at}, but Vortaro has a package '{root}'. Rename it.")
    if not any(type(finder).__name__ == RootFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, RootFinder(FOLDER))
