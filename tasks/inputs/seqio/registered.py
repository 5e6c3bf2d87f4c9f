"""Lookup of registered seqio Tasks and Mixtures: by name, their features and splits."""

from typing import Any

from layers.errors import UsageError, did_you_mean
from tasks.inputs.seqio.library import libraries
from tasks.inputs.seqio.registration import unprepared


def find_task(name: str) -> Any:
    """Returns the registered seqio Task or Mixture `name`; those of tasks.inputs.seqio.catalog are always registered.

    Raises:
      UsageError: unknown name.
    """
    seqio, _ = libraries()
    from tasks.inputs.seqio.catalog import register_catalog  # registers on import: needs TensorFlow

    register_catalog()
    names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if name not in names:
        raise UsageError(
            f"Unknown seqio Task or Mixture '{name}'. {did_you_mean(name, names)} Import the module that registers it "
            f"with --import=MODULE."
        )
    return seqio.get_mixture_or_task(name)


def feature_of(task: Any, feature: str, purpose: str) -> Any:
    """Returns the seqio Feature `feature` of a task; `purpose` names its use in the error message.

    Raises:
      UsageError: the task has no such feature.
    """
    features = task.output_features
    if feature not in features:
        near = did_you_mean(feature, features)
        raise UsageError(f"seqio task '{task.name}' has no feature '{feature}', which {purpose} needs. {near}")
    return features[feature]


def splits_of(task: Any) -> list[str]:
    """Returns the names of a task's splits.

    Raises:
      UsageError: the task's data cannot be read.
    """
    with unprepared(task.name):
        return sorted(task.splits)
