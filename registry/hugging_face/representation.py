"""Whether a config.json can represent an experiment's model: the model that it describes is compared with it."""

from collections.abc import Iterator

from layers.errors import UsageError, did_you_mean
from registry.build import config_of
from registry.experiment import Experiment
from registry.hugging_face.families import FAMILIES, from_content
from registry.hugging_face.family import Family
from registry.hugging_face.keys import Knobs
from registry.records.snapshot import flat
from registry.values import show

# Fields of modules without effect on the logits of a trained model: initial values, regularization, placement,
# precision, and how the same result is computed.
WITHOUT_EFFECT = (
    *("initializer", "out_initializer", "query_initializer", "stddev"),
    *("dropout_rate", "layer_drop_rate", "jitter", "aux_loss", "router_z_loss"),
    *("dtype", "param_dtype", "remat", "unroll", "implementation", "block_size", "joint_projections"),
    *("table_rows", "table_columns", "padded_heads", "num_groups", "max_length", "activations", "receive_factor"),
)


def representing_family(experiment: Experiment, model_type: str | None = None) -> Family:
    """Returns the family whose config.json represents the experiment's model: that of the nearest base class, or any.

    Args:
      experiment: the experiment.
      model_type: the only family to consider; None for all.
    Raises:
      UsageError: none does; the message names a field of the model that differs in the nearest family.
    """
    if model_type is not None and model_type not in FAMILIES:
        raise UsageError(f"Unknown model type '{model_type}'. {did_you_mean(model_type, FAMILIES)}")
    bases = type(experiment).__mro__
    rank = lambda family: bases.index(family.base_class()) if family.base_class() in bases else len(bases)
    families = [FAMILIES[model_type]] if model_type is not None else sorted(FAMILIES.values(), key=rank)
    found = {}
    for family in families:
        wrong = list(differences(experiment, family))
        if not wrong:
            return family
        found[family.model_type] = wrong
    nearest = min(found, key=lambda name: len(found[name]))
    raise UsageError(f"{nearest} models differ from {type(experiment).__name__}: {found[nearest][0]}.")


def differences(experiment: Experiment, family: Family) -> Iterator[str]:
    """Yields what differs between the experiment's model and the one that the family's config.json describes."""
    try:
        _, knobs = from_content(family.config(experiment), "config.json")
        found = list(model_differences(experiment, family, knobs))
    except UsageError as error:
        yield str(error).rstrip(".")
        return
    yield from (f"{path} is {theirs} there (got {ours})" for path, theirs, ours in found)


def require_same_model(experiment: Experiment, family: Family, knobs: Knobs, source: str) -> None:
    """Raises a UsageError unless the experiment's model is that of the knobs, which `source` describes."""
    for path, theirs, ours in model_differences(experiment, family, knobs):
        raise UsageError(
            f"'{source}' has another model than {type(experiment).__name__}: {path} is {theirs} there (got {ours}). "
            f"Choose another --exp, or none."
        )


def model_differences(experiment: Experiment, family: Family, knobs: Knobs) -> Iterator[tuple[str, str, str]]:
    """Yields the fields in which the family's model of these knobs differs: path, its value, the experiment's."""
    theirs, ours, none = _described(family, knobs), _model(experiment), "no such field"
    for path in sorted({*ours, *theirs}):
        if ours.get(path) != theirs.get(path):
            yield path, theirs.get(path, none), ours.get(path, none)


def _described(family: Family, knobs: Knobs) -> dict[str, str]:
    # Synthetic data, because bytes would need a vocabulary of 256.
    return _model(family.base_class().derive(**knobs, DATA="synthetic")())


def _model(experiment: Experiment) -> dict[str, str]:
    fields = dict(flat(config_of(experiment, "task").model, "task.model"))
    for path, value in fields.items():
        size = fields.get(path.removesuffix(".scale") + ".head_dim")
        if path.endswith(".scale") and value == "None" and size is not None:
            fields[path] = show(int(size) ** -0.5)  # the default of attention
    return {path: value for path, value in fields.items() if not set(path.split(".")) & set(WITHOUT_EFFECT)}
