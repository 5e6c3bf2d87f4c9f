"""Relations of several keys of a config.json with several knobs: activations, biases, initial values, windows."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from registry.hugging_face.keys import REQUIRED, Config, Knobs
from registry.templates import layer_patterns

ACTIVATIONS = {  # by transformers' names; the first of several is written
    "silu": "silu",
    "gelu": "gelu_erf",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "relu2": "squared_relu",
    "swish": "silu",
}
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclasses.dataclass(frozen=True)
class Activation:
    """The activation of feed-forward layers."""

    name: str
    default: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def knobs(self, config: Config) -> Knobs:
        found = config.read(self.name, self.default, str)
        if found not in ACTIVATIONS:
            raise config.refuse(self.name, f"Choose one of {', '.join(ACTIVATIONS)}.")
        return {"ACTIVATION": ACTIVATIONS[found]}

    def keys(self, experiment: Any) -> dict[str, Any]:
        return {self.name: next((name for name, ours in ACTIVATIONS.items() if ours == experiment.ACTIVATION), "")}


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Whether both branches of a block read its input, each with its own norm."""

    names: tuple[str, ...] = ("use_parallel_residual",)

    def knobs(self, config: Config) -> Knobs:
        parallel = config.read("use_parallel_residual", True, bool)
        return {"RESIDUAL": "parallel" if parallel else "sequential"}

    def keys(self, experiment: Any) -> dict[str, Any]:
        return {"use_parallel_residual": experiment.RESIDUAL == "parallel"}


@dataclasses.dataclass(frozen=True)
class InitialStddev:
    """The standard deviation of initial matrices and embeddings."""

    names: tuple[str, ...] = ("initializer_range",)

    def knobs(self, config: Config) -> Knobs:
        stddev = config.read("initializer_range", 0.02, float)
        if stddev < 0:
            raise config.refuse("initializer_range", "It must be at least 0.")
        return {"INIT_STDDEV": stddev, "EMBEDDING_STDDEV": stddev}

    def keys(self, experiment: Any) -> dict[str, Any]:
        return {"initializer_range": experiment.INIT_STDDEV or 0.02}


@dataclasses.dataclass(frozen=True)
class InverseRoot:
    """The square of the inverse factor on scores."""

    name: str
    default: float

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def knobs(self, config: Config) -> Knobs:
        square = config.read(self.name, self.default, float)
        if square <= 0:
            raise config.refuse(self.name, "It must be above 0.")
        return {"ATTENTION_SCALE": square**-0.5}

    def keys(self, experiment: Any) -> dict[str, Any]:
        scale = experiment.ATTENTION_SCALE
        square = float(experiment.head_dim) if scale is None else round(scale**-2, 6)
        return {self.name: int(square) if square.is_integer() else square}


@dataclasses.dataclass(frozen=True)
class Biases:
    """Places of BIASES that a key switches on; `always` has places without a key."""

    switches: tuple[tuple[str, tuple[str, ...], bool], ...] = ()  # (key, places, transformers' value of a missing key)
    always: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.switches)

    def knobs(self, config: Config) -> Knobs:
        places = list(self.always)
        for name, of_key, default in self.switches:
            places += of_key if config.read(name, default, bool) else ()
        order = ("qkv", "attention_out", "ffn", "norm", "head")
        return {"BIASES": tuple(sorted(places, key=order.index))}

    def keys(self, experiment: Any) -> dict[str, Any]:
        return {name: places[0] in experiment.BIASES for name, places, _ in self.switches}


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of attention: of all layers, or of layers by type; `layer_types` names the type of each layer."""

    default: int | None = None  # transformers' value of a missing sliding_window
    by_layer: bool = False  # whether layers have types
    switch: bool = False  # whether windows need use_sliding_window
    first_key: str = ""  # number of first layers without a window; empty for none
    first: int = 0  # transformers' value of a missing key
    period: int | None = None  # layers of a pattern whose last one has no window; None for no such pattern
    period_keys: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        keys = ["sliding_window", *self.period_keys]
        keys += ["use_sliding_window"] * self.switch + [self.first_key] * bool(self.first_key)
        return (*keys, "layer_types") if self.by_layer else tuple(keys)

    def knobs(self, config: Config) -> Knobs:
        window = config.read("sliding_window", self.default, int, nullable=True)
        if self.switch and not config.read("use_sliding_window", False, bool):
            window = None
        first = config.read(self.first_key, self.first, int) if self.first_key else 0
        period = self.period
        for name in self.period_keys:
            period = config.read(name, period, int)
        if not self.by_layer:
            return {"ATTENTION_WINDOW": window}
        layers = config.read("num_hidden_layers", REQUIRED, int)
        given = config.read("layer_types", None, list, nullable=True)
        if given is None:
            has_window = [i >= first and not (period and (i + 1) % period == 0) for i in range(layers)]
            if self.switch and window is None:
                has_window = [False] * layers
        else:
            if len(given) != layers or any(each not in (FULL, SLIDING) for each in given):
                raise config.refuse(
                    "layer_types", f"It must have {FULL} or {SLIDING} num_hidden_layers = {layers} times."
                )
            has_window = [each == SLIDING for each in given]
        if any(has_window) and window is None:
            needed = "sliding_window and use_sliding_window" if self.switch else "sliding_window"
            raise config.refuse("layer_types", f"Layers of type {SLIDING} need {needed}.")
        return {"ATTENTION_WINDOW": shortest([window if each else None for each in has_window])}

    def keys(self, experiment: Any) -> dict[str, Any]:
        layers = layer_patterns.kinds(type(experiment), experiment.NUM_LAYERS)
        windows = [layer.get("ATTENTION_WINDOW", experiment.ATTENTION_WINDOW) for layer in layers]
        window = next((each for each in windows if each is not None), None)
        keys: dict[str, Any] = {"sliding_window": window if window or not self.by_layer else self.default}
        if self.switch:
            keys["use_sliding_window"] = window is not None
        if self.by_layer and (window is not None or not self.switch):
            keys["layer_types"] = [FULL if each is None else SLIDING for each in windows]
        return keys


def shortest(values: Sequence[Any]) -> Any:
    """Returns the shortest pattern that repeats to `values`, possibly in part at the end; a value if all are equal."""
    for size in range(1, len(values) + 1):
        if all(value == values[i % size] for i, value in enumerate(values)):
            return values[0] if size == 1 else tuple(values[:size])
    return tuple(values)
