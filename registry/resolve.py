"""From a name to an experiment."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence

from layers.errors import UsageError, did_you_mean
from registry import index
from registry.experiment import REGISTRY, Experiment, knobs_set_by
from registry.overrides import override


def resolve(
    name: str, overrides: Sequence[str] = (), *, smoke: bool = False, imports: Sequence[str] = ()
) -> Experiment:
    """The experiment of that name, made small if `smoke`, with the overrides carried out.

    Accepts `family.Class`, `registered.Class`, the bare class name, spellings that differ in case, hyphens and
    underscores (`VQ-Large`), and `their.module.Class` for a class in a user's own module.

    Raises:
      UsageError: no or several such experiments, a module that does not import (shown whole), or a bad override.
    """
    for module in imports:
        load(module)
    cls = find(name)
    if smoke:
        with knobs_set_by("Smoke()"):
            cls = cls.Smoke().derive(smoke=True)
    return override(cls, overrides)()


def find(name: str) -> type[Experiment]:
    """The registered class of that name."""
    keys = sorted({*index.entries(), *REGISTRY})
    wanted = name.removeprefix("registered.")
    matches = (
        [key for key in keys if key == wanted]
        or [key for key in keys if key.rpartition(".")[2] == wanted]
        or [key for key in keys if _plain(key) == _plain(wanted)]
        or [key for key in keys if _plain(key.rpartition(".")[2]) == _plain(wanted)]
    )
    if len(matches) > 1:
        raise UsageError(f"'{name}' could be {' or '.join(matches)}: give the whole name.")
    if matches:
        key = matches[0]
        if key not in REGISTRY:
            load(index.entries()[key].module)
        return REGISTRY[key]
    module, _, cls = wanted.rpartition(".")
    if module and _exists(module):
        found = getattr(load(module), cls, None)
        if isinstance(found, type) and issubclass(found, Experiment):
            return found
        keys = [key for key in REGISTRY if key.startswith(f"{module}.")] or keys
    elif module and module not in {key.rpartition(".")[0] for key in keys}:
        near = did_you_mean(wanted, keys)
        raise UsageError(f"There is no experiment '{name}', and no module '{module}' on the Python path. {near}")
    raise UsageError(f"There is no experiment '{name}'. {did_you_mean(wanted, _spellings(wanted, keys))}")


def load(module: str):
    """Imports a module.

    Raises:
      UsageError: there is none of that name, or it fails; then the message holds the whole traceback.
    """
    if not _exists(module):
        raise UsageError(
            f"There is no module '{module}' on the Python path: run where it can be imported, or install it."
        )
    try:
        return importlib.import_module(module)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"Importing '{module}' failed:\n{traceback.format_exc()}") from error


def _exists(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _spellings(name: str, keys: Sequence[str]) -> list[str]:
    """What to compare a misspelt name with: class names for a bare name, keys otherwise."""
    return list(keys) if "." in name else [key.rpartition(".")[2] for key in keys]
