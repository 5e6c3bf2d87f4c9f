"""Checks the annotations of layers and tasks: shapes, dtypes and types of arguments and results, at each call.

Only in the tests of layers, of tasks and of the registry, whose tests train every family: the checks made tests of
the runner a third slower.

The first plugin of the tests, imported before any module of those packages: jaxtyping decorates functions while their
modules are imported. Arrays and scalars of numpy may replace those of JAX, as everywhere in JAX. Fields of pytrees
are not checked: transformations of JAX put shapes, specs and markers in the places of their arrays.
"""

from collections.abc import Callable

import jax
import jaxtyping
import numpy as np
from beartype import BeartypeConf, BeartypeHintOverrides, beartype

jaxtyping.Array = jax.Array | np.ndarray | np.generic
CHECKED = ("tests/layers/", "tests/tasks/", "tests/registry/", "tests/project/test_shapes.py")
HINTS = BeartypeConf(is_pep484_tower=True, hint_overrides=BeartypeHintOverrides({jax.Array: jaxtyping.Array}))


def checked(function: Callable) -> Callable:
    """The function with a check of what it takes and returns."""
    return function if function.__name__ == "__init__" else beartype(function, conf=HINTS)


jaxtyping.install_import_hook(["layers", "tasks"], "tests.support.plugins.shapes.checked")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Turns the checks on or off, before a test and its fixtures."""
    jaxtyping.config.update("jaxtyping_disable", not nodeid.startswith(CHECKED))
