"""Building of objects from configs, and registrations that let Fiddle print and save the project's own values."""

import dataclasses
import sys
from typing import Any

import fiddle as fdl
import numpy as np
from fiddle import daglish
from fiddle.experimental import serialization

from layers.errors import SpecError, UsageError, VortaroError, first_line
from layers.roots import is_ours
from layers.specs import P, Specs
from registry.experiment import REGISTRY, Experiment
from registry.overrides import METHODS
from registry.user_code import building, described, is_users


def build(config: fdl.Config, name: str) -> Any:
    """Builds `config`, which errors refer to as `name`.

    Raises:
      UsageError: a constructor rejects its arguments.
    """
    try:
        return fdl.build(config)
    except VortaroError as error:
        kind = next(kind for kind in (SpecError, UsageError, VortaroError) if isinstance(error, kind))
        message = first_line(error, 1000)  # Fiddle appends its own lines
        raise kind(message if message.endswith("?") else f"{message}.") from error
    except Exception as error:
        place = "".join(getattr(error, "__notes__", ())).partition(" at <root>")[2].partition(" ")[0].rstrip(".\n")
        raise UsageError(f"{name}{place}: {described(error)}.") from error


def config_of(experiment: Experiment, root: str) -> fdl.Config:
    """Returns the config of Task(), Train() or Test(), by its root: "task", "train" or "test".

    Raises:
      UsageError: the method fails; the message names the line in the user's code.
    """
    cls = type(experiment)
    with building(cls):
        return getattr(experiment, METHODS[root])()


def to_json(config: fdl.Config) -> str:
    """Returns the config as Fiddle's JSON; `from_json` builds an equal one."""
    return serialization.dump_json(config)


def from_json(text: str) -> Any:
    """Returns the config that `to_json` wrote.

    Raises:
      PyrefPolicyError: it names another callable than those of `_Trusted`.
    """
    return serialization.load_json(text, _Trusted())


# Modules of functions that configs have as values, such as activations and parts of optimizers: none reads files.
FUNCTIONS = ("jax._src.nn.", "jax._src.numpy.ufuncs", "jax._src.lax.", "flax.linen.", "optax.")


class _Trusted(serialization.PyrefPolicy):
    """What a record may name, because building its config calls it: a run folder may come from somebody else.

    These are dataclasses, the types of containers that Fiddle saves, dtypes, the functions in FUNCTIONS, and everything
    in modules of users and in packages that have registered an experiment: but no other function or class of Vortaro,
    Python or installed packages. No module is imported except Vortaro's and those of users.
    """

    def allows_import(self, module: str, symbol: str) -> bool:
        del symbol
        return module in sys.modules or is_ours(module) or is_users(module)

    def allows_value(self, value: Any) -> bool:
        module = getattr(value, "__module__", None) or ""
        is_container = isinstance(value, type) and serialization.find_node_traverser(value) is not None
        if is_container or dataclasses.is_dataclass(value) or _is_dtype(value):
            return True
        return f"{module}.".startswith(FUNCTIONS) or is_users(module) or _has_experiments(module)


def _has_experiments(module: str) -> bool:
    """Returns whether the package of a module has registered an experiment in this process, and is not Vortaro's."""
    root = module.partition(".")[0]
    return not is_ours(root) and any(cls.__module__.partition(".")[0] == root for cls in REGISTRY.values())


def _is_dtype(value: Any) -> bool:
    try:
        return (isinstance(value, type) or hasattr(value, "dtype")) and np.dtype(value) != np.dtype(object)
    except TypeError:
        return False


def _names(values: Any) -> tuple[daglish.PathElement, ...]:
    return tuple(daglish.Index(i) for i in range(len(values)))


serialization.register_node_traverser(
    P,
    flatten_fn=lambda spec: (tuple(spec), None),
    unflatten_fn=lambda values, _: P(*values),
    path_elements_fn=_names,
)
serialization.register_node_traverser(
    Specs,
    flatten_fn=lambda table: (tuple(table.values()), tuple(table)),
    unflatten_fn=lambda values, keys: Specs(**dict(zip(keys, values, strict=True))),
    path_elements_fn=_names,
)
