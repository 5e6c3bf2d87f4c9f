"""Resolution of names to experiments."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from layers.errors import UsageError, did_you_mean
from layers.roots import ROOTS
from registry import index
from registry.experiment import REGISTRY, TEMPLATES, Experiment, cls_key, faults_deferred, knobs_set_by, require_sound
from registry.overrides import override
from registry.user_code import clear_errors, in_run_folder, with_place


def resolve(
    name: str, overrides: Sequence[str] = (), *, smoke: bool = False, imports: Sequence[str] = ()
) -> Experiment:
    """Returns the experiment of that name, reduced by Smoke() if `smoke`, with the overrides applied.

    Accepts `family.Class`, `registered.Class`, the class name alone, spellings that differ in case, hyphens and
    underscores (`VQ-Large`), and `their.module.Class` for a class in a user's own module.

    Raises:
      UsageError: an unknown or ambiguous name, a module that cannot be imported, or an invalid override.
    """
    for module in imports:
        load(module)
    cls = find(name)
    if smoke:
        with knobs_set_by("Smoke()"), clear_errors(f"{cls_key(cls)} cannot be made small", cls.__module__):
            cls = cls.Smoke().derive(smoke=True)
    return override(cls, overrides)()


def resolve_recorded(
    record: Mapping[str, Any], overrides: Sequence[str] = (), *, smoke: bool = False, imports: Sequence[str] = ()
) -> Experiment:
    """Returns the experiment of a run folder's record (its snapshot), with further overrides, and small if `smoke`.

    Raises:
      UsageError: as for `resolve`; its class may no longer exist.
    """
    then = resolve(record["experiment"], record["overrides"], smoke=record["smoke"] or smoke, imports=imports)
    return override(type(then).derive(is_recorded=True), overrides)()


def find(name: str) -> type[Experiment]:
    """Returns the registered class of that name."""
    keys = sorted({*index.entries(), *REGISTRY})
    query = name.removeprefix("registered.")
    matches = (
        [key for key in keys if key == query]
        or [key for key in keys if key.rpartition(".")[2] == query]
        or [key for key in keys if _plain(key) == _plain(query)]
        or [key for key in keys if _plain(key.rpartition(".")[2]) == _plain(query)]
    )
    if len(matches) > 1:
        raise UsageError(f"'{name}' is ambiguous: it matches {' or '.join(matches)}. Give the full name.")
    if matches:
        key = matches[0]
        if key not in REGISTRY:
            load(index.entries()[key].module)
        return require_sound(REGISTRY[key])
    module, _, cls = query.rpartition(".")
    if f"registry.{module}.".startswith(TEMPLATES) and not _exists(module):
        module = f"registry.{module}"  # `templates.decoder.DecoderLm`, as tables show it
    elif module and not _exists(module) and _exists(f"registry.experiments.{module}"):
        module = f"registry.experiments.{module}"  # `qwen.Qwen3`, the base of registered classes
    if module and _exists(module):
        found = getattr(load(module), cls, None)
        if isinstance(found, type) and issubclass(found, Experiment):
            return require_sound(found)
        keys = [key for key in REGISTRY if key.startswith(f"{module}.")] or keys
    elif module and module not in {key.rpartition(".")[0] for key in keys}:
        near = did_you_mean(query, keys)
        raise UsageError(f"Unknown experiment '{name}': module '{module}' is not on the Python path. {near}")
    raise UsageError(f"Unknown experiment '{name}'. {did_you_mean(query, _spellings(query, keys))}")


def load(module: str):
    """Imports a module.

    Raises:
      UsageError: the module does not exist or fails; the message names the exception and the module's line.
    """
    root = module.partition(".")[0]
    if module in ROOTS or (root in ROOTS and not _exists(module)):
        raise UsageError(
            f"Module '{module}' has the name of Vortaro's own package '{root}'. Rename your module and its folder."
            if "." in module
            else f"Module '{module}' has the name of one of Vortaro's own packages. Rename your module."
        )
    if not _exists(module):
        raise UsageError(
            f"Module '{module}' is not on the Python path. Install it, or run from a folder where it can be imported."
        )
    with with_place(module), clear_errors(f"Importing '{module}' failed", module), faults_deferred():
        return importlib.import_module(module)


def _exists(module: str) -> bool:
    if module in sys.modules:
        return True
    if in_run_folder(module):  # looking for a module imports the packages that it is in
        raise UsageError(f"Module '{module}' is in a run folder, whose code is not imported. Move it elsewhere.")
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _spellings(name: str, keys: Sequence[str]) -> list[str]:
    """Returns the candidates for a misspelt name: class names for a class name alone, keys otherwise."""
    return list(keys) if "." in name else [key.rpartition(".")[2] for key in keys]
