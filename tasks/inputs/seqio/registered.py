"""Tasks and Mixtures that are registered with seqio: lookup by name, features, splits."""

from typing import Any

from layers.errors import UsageError, did_you_mean
from tasks.inputs.seqio.library import libraries
from tasks.inputs.seqio.registration import unprepared


def find_task(name: str) -> Any:
    """The registered seqio Task or Mixture of that name; those of tasks.inputs.seqio.catalog are always there.

    Raises:
      UsageError: there is none.
    """
    seqio, _ = libraries()
    from tasks.inputs.seqio.catalog import register_catalog  # registers on import: needs TensorFlow

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
    with unprepared(task.name):
        return sorted(task.splits)
