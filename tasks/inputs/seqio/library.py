"""seqio and TensorFlow, imported when they are needed, and what is registered with seqio."""

import contextlib
import sys
from typing import Any

from layers.errors import UsageError, did_you_mean, missing_package
from tasks.quiet_imports import quiet_native_code, tensorflow


def libraries() -> tuple[Any, Any]:
    """The modules seqio and tensorflow; TensorFlow leaves the accelerators to jax.

    Raises:
      UsageError: they are not installed.
    """
    with quiet_native_code() if "seqio" not in sys.modules else contextlib.nullcontext():
        try:
            tf = tensorflow()
            import seqio
        except ImportError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise missing_package("DATA = seqio", f"seqio ({reason})", "seqio") from error
    return seqio, tf


def find_task(name: str) -> Any:
    """The registered seqio Task or Mixture of that name; those of tasks.inputs.seqio.catalog are always there.

    Raises:
      UsageError: there is none.
    """
    seqio, _ = libraries()
    from tasks.inputs.seqio.catalog import register_catalog

    register_catalog()
    names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if name not in names:
        raise UsageError(
            f"There is no seqio Task or Mixture '{name}'. {did_you_mean(name, names)} The module that registers it is "
            f"named by --import=MODULE."
        )
    return seqio.get_mixture_or_task(name)


def feature_of(task: Any, feature: str, purpose: str) -> Any:
    """The seqio Feature that a task calls so; `purpose` says what it is needed for.

    Raises:
      UsageError: the task has none of that name.
    """
    features = task.output_features
    if feature not in features:
        near = did_you_mean(feature, features)
        raise UsageError(f"seqio task '{task.name}' has no feature '{feature}', which {purpose} needs. {near}")
    return features[feature]


def splits_of(task: Any) -> list[str]:
    """Names of a task's splits.

    Raises:
      UsageError: its data is not there to be asked.
    """
    from tasks.inputs.seqio.registration import unprepared

    with unprepared(task.name):
        return sorted(task.splits)
