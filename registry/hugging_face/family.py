"""A family of Hugging Face's models: the keys of its config.json, and the knobs that all its models share."""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any

from layers.errors import UsageError
from registry.experiment import knob_types
from registry.hugging_face.keys import Config, Knobs, Only, Relation, Same, Without
from registry.hugging_face.relations import InitialStddev, shortest
from registry.values import convert

# Keys that transformers has for all families.
SHARED: tuple[Relation, ...] = (
    Without(("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "cache_implementation")),
    Without(("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type", "return_dict")),
    Without(("output_attentions", "output_hidden_states", "attn_implementation", "_attn_implementation")),
    Without(("_attn_implementation_autoset", "gradient_checkpointing", "tokenizer_class")),
    Without(("unsloth_fixed", "unsloth_version")),
    Only("quantization_config", None, "Quantized weights are not supported."),
    Only("is_encoder_decoder", False),
    Only("is_decoder", False),
    Only("chunk_size_feed_forward", 0),
    Same("hidden_size", "MODEL_DIM"),
    Same("num_hidden_layers", "NUM_LAYERS"),
    Same("vocab_size", "VOCAB_SIZE"),
    Same("num_attention_heads", "NUM_HEADS"),
    InitialStddev(),
)


@dataclasses.dataclass(frozen=True)
class Family:
    """A model_type of transformers."""

    model_type: str
    architecture: str  # the class of its causal language models
    base: str  # module and class of the template or entry's base whose knobs its models share
    shared: Mapping[str, Any]  # knobs that all its models have and no key determines
    relations: tuple[Relation, ...]

    def names(self) -> set[str]:
        """Returns all keys that its files may have."""
        own = {name for relation in (*SHARED, *self.relations) for name in relation.names}
        return {"model_type", "architectures", *own}

    def knobs(self, config: Config) -> Knobs:
        """Returns the knobs of the model that the file describes.

        Raises:
          UsageError: a key is unknown, missing or of another type, or its value is not supported.
        """
        for architecture in config.read("architectures", None, list, nullable=True) or []:
            if architecture != self.architecture:
                raise config.refuse("architectures", f"Only {self.architecture} is.")
        found = dict(self.shared)
        types = _knob_types(self.base)
        for relation in (*SHARED, *self.relations):
            knobs = relation.knobs(config)
            _require_valid(knobs, types, relation, config)
            found |= knobs
        config.require_all_read(self.names())
        return _with_local_bases(found)

    def config(self, experiment: Any) -> dict[str, Any]:
        """Returns the config.json of an experiment's model, which describes it if `knobs` returns the same model."""
        keys: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for relation in (*SHARED, *self.relations):
            keys |= relation.keys(experiment)
        return keys

    def base_class(self) -> Any:
        """Returns the class of `base`."""
        return _class(self.base)


def _require_valid(knobs: Knobs, types: Mapping[str, Any], relation: Relation, config: Config) -> None:
    """Raises a UsageError, which names the key, for a value that the knob does not take."""
    for name, value in knobs.items():
        try:
            convert(value, types[name], name)
        except UsageError as error:
            wrong = [each for each in (value if isinstance(value, tuple) else (value,)) if not _fits(each, types[name])]
            keys = [key for key in relation.names if any(config.has_value(key, each) for each in wrong)]
            raise config.refuse((*keys, *relation.names)[0], str(error)) from error


def _fits(value: Any, hint: Any) -> bool:
    try:
        convert(value, hint, "")
    except UsageError:
        return False
    return True


@functools.cache
def _knob_types(base: str) -> dict[str, Any]:
    return knob_types(_class(base))


def _class(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def _with_local_bases(knobs: Knobs) -> Knobs:
    """Fits the pairs of rotary knobs, of layers with and without a window, to the pattern of windows."""
    windows = knobs.get("ATTENTION_WINDOW")
    pairs = {name: value for name, value in knobs.items() if name.startswith("ROTARY_") and isinstance(value, tuple)}
    if isinstance(windows, tuple):
        return knobs | {name: shortest([pair[each is None] for each in windows]) for name, pair in pairs.items()}
    return knobs | {name: pair[windows is None] for name, pair in pairs.items()}
