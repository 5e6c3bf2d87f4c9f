"""Relations of several keys of a config.json with several knobs: rotary positions, windows, biases, experts."""

import dataclasses
import math
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
class Rotary:
    """Rotary positions: transformers' rope_theta and rope_scaling, or rope_parameters of its version 5."""

    base: float = 10_000.0  # transformers' value of a missing key
    base_key: str = "rope_theta"
    share_key: str = ""  # partial rotation; empty if there is none
    share: float = 1.0
    local_base_key: str = ""  # base of layers with a window; empty if it is that of all layers
    local_base: float = 10_000.0

    @property
    def names(self) -> tuple[str, ...]:
        own = (self.base_key, "rope_scaling", "rope_parameters", self.share_key, self.local_base_key)
        shared = ("rope_theta", "partial_rotary_factor") if self.share_key else ("rope_theta",)
        return tuple(dict.fromkeys(name for name in (*own, *shared) if name))

    def knobs(self, config: Config) -> Knobs:
        scaling = config.read("rope_scaling", None, dict, nullable=True) or {}
        parameters = config.read("rope_parameters", None, dict, nullable=True) or {}
        if scaling and parameters:
            raise config.refuse("rope_scaling", "Remove it, because rope_parameters has its values.")
        base = self._read(config, self.base_key, "rope_theta", self.base)
        share = self._read(config, self.share_key, "partial_rotary_factor", self.share) if self.share_key else 1.0
        local = {}
        local_base = config.read(self.local_base_key, self.local_base, float) if self.local_base_key else None
        if self.local_base_key and parameters:
            if set(parameters) - {FULL, SLIDING}:
                raise config.refuse("rope_parameters", f"It must have {FULL} and {SLIDING}.")
            local, parameters = dict(parameters.get(SLIDING) or {}), dict(parameters.get(FULL) or {})
            local_base = self._base(config, local, self.local_base if local_base is None else local_base)
            if local.pop("rope_type", "default") != "default" or local:
                raise config.refuse("rope_parameters", f"{SLIDING} must have rope_type default.")
        rest = dict(scaling or parameters)
        name = "rope_scaling" if scaling else "rope_parameters"
        base = self._base(config, rest, base)
        share = self._base(config, rest, share, "partial_rotary_factor") if self.share_key else share
        knobs = {"ROTARY_SHARE": share, **self._scaled(config, name, rest)}
        if local_base is None:
            return {"ROTARY_BASE": base, **knobs}
        # Patterns over layers, which the relation of windows fits to its own.
        return {"ROTARY_BASE": (local_base, base), **knobs, "ROTARY_SCALING": ("none", knobs["ROTARY_SCALING"])}

    def _read(self, config: Config, name: str, usual: str, default: float) -> float:
        value = config.read(name, default, float)
        if usual != name and config.read(usual, value, float) != value:  # some versions write both, equal
            raise config.refuse(usual, f"It must equal {name} (got {value:g}), or be removed.")
        return value

    def _base(self, config: Config, found: dict[str, Any], default: float, name: str = "rope_theta") -> float:
        try:
            return _number(found.pop(name, default))
        except TypeError as error:
            given = "rope_scaling" if config.has("rope_scaling") else "rope_parameters"
            raise config.refuse(given, f"Its {name} must be a number.") from error

    def _scaled(self, config: Config, name: str, found: dict[str, Any]) -> Knobs:
        kinds = [kind for kind in (found.pop("rope_type", None), found.pop("type", None)) if kind is not None]
        kind = kinds[0] if kinds else "default"
        if kinds[1:] and kinds[1] != kind:
            raise config.refuse(name, "Its rope_type and type differ. Remove one of them.")
        if kind == "default":
            if found:
                raise config.refuse(name, f"{next(iter(found))} has no effect without scaling. Remove it.")
            return {"ROTARY_SCALING": "none"}
        if kind not in ("linear", "llama3", "yarn"):
            raise config.refuse(name, f"rope_type must be linear, llama3 or yarn (got {kind}).")
        try:
            knobs: Knobs = {"ROTARY_SCALING": kind, "ROTARY_FACTOR": _number(found.pop("factor"))}
            if kind != "linear":
                length = found.pop("original_max_position_embeddings", None)
                longest = config.read("max_position_embeddings", REQUIRED, int)
                knobs["ROTARY_LENGTH"] = longest if length is None else int(_number(length))
                low, high = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
                if kind == "llama3":
                    knobs |= {"ROTARY_LOW": _number(found.pop(low)), "ROTARY_HIGH": _number(found.pop(high))}
                else:
                    given = found.pop(low, None), found.pop(high, None)
                    knobs |= {"ROTARY_LOW": _number(given[0] or 1.0), "ROTARY_HIGH": _number(given[1] or 32.0)}
                    knobs["ROTARY_AMPLITUDE"] = self._amplitude(knobs["ROTARY_FACTOR"], found)
        except KeyError as error:
            raise config.refuse(name, f"Scaling of type {kind} needs {error.args[0]}.") from error
        except (TypeError, ValueError) as error:
            raise config.refuse(name, "Its values must be numbers.") from error
        if found:
            raise config.refuse(name, f"{next(iter(found))} is unknown for type {kind}. Remove it.")
        return knobs

    def _amplitude(self, factor: float, found: dict[str, Any]) -> float | None:
        given, one, all_dims = (found.pop(name, None) for name in ("attention_factor", "mscale", "mscale_all_dim"))
        if found.get("truncate") is True:
            del found["truncate"]
        if given is not None or not (one and all_dims):
            return None if given is None else _number(given)
        larger = lambda scale: 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
        return larger(_number(one)) / larger(_number(all_dims))

    def keys(self, experiment: Any) -> dict[str, Any]:
        patterns = {name: getattr(experiment, name) for name in ("ROTARY_BASE", "ROTARY_SCALING")}
        last = {name: value[-1] if isinstance(value, tuple) else value for name, value in patterns.items()}
        found: dict[str, Any] = {self.base_key: last["ROTARY_BASE"]}
        if self.local_base_key:
            first = patterns["ROTARY_BASE"]
            found[self.local_base_key] = first[0] if isinstance(first, tuple) else first
        if self.share_key:
            found[self.share_key] = experiment.ROTARY_SHARE
        kind = last["ROTARY_SCALING"]
        if kind == "none":
            return {**found, "rope_scaling": None}
        scaling = {"rope_type": kind, "factor": experiment.ROTARY_FACTOR}
        if kind != "linear":
            scaling["original_max_position_embeddings"] = experiment.ROTARY_LENGTH or experiment.SEQ_LEN
        if kind == "llama3":
            scaling |= {"low_freq_factor": experiment.ROTARY_LOW, "high_freq_factor": experiment.ROTARY_HIGH or 4.0}
        if kind == "yarn":
            scaling |= {"beta_slow": experiment.ROTARY_LOW, "beta_fast": experiment.ROTARY_HIGH or 32.0}
            if experiment.ROTARY_AMPLITUDE is not None:
                scaling["attention_factor"] = experiment.ROTARY_AMPLITUDE
        return {**found, "rope_scaling": scaling}


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
            if len(given) != layers or set(given) - {FULL, SLIDING}:
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


@dataclasses.dataclass(frozen=True)
class Experts:
    """Mixtures of experts: their number, size and gates; and the layers without one."""

    number_keys: tuple[str, ...]  # the first is written
    number: int
    per_token: int
    normalized_key: str = ""  # whether gates sum to 1; empty if they always do
    dim_key: str = ""  # hidden units of an expert, not of dense layers; empty if both are intermediate_size
    dense_key: str = ""  # numbers of layers without experts
    step_key: str = ""  # experts in every n-th layer

    @property
    def names(self) -> tuple[str, ...]:
        more = (self.normalized_key, self.dim_key, self.dense_key, self.step_key)
        more += ("intermediate_size",) if self.dim_key else ()
        return (*self.number_keys, "num_experts_per_tok", "router_aux_loss_coef", *(name for name in more if name))

    def knobs(self, config: Config) -> Knobs:
        number = self.number
        for name in self.number_keys:
            number = config.read(name, number, int)
        normalized = not self.normalized_key or config.read(self.normalized_key, False, bool)
        knobs: Knobs = {
            "NUM_EXPERTS": number,
            "EXPERTS_PER_TOKEN": config.read("num_experts_per_tok", self.per_token, int),
            "GATES": "top_k_then_softmax" if normalized else "softmax_then_top_k",
            "AUX_LOSS": config.read("router_aux_loss_coef", 0.001, float),
        }
        if self.dim_key:
            knobs["EXPERT_DIM"] = config.read(self.dim_key, 768, int)
        kinds = ["gated_experts"]
        if self.dense_key:
            layers = config.read("num_hidden_layers", REQUIRED, int)
            dense = config.read(self.dense_key, [], list, nullable=True) or []
            step = config.read(self.step_key, 1, int)
            if step < 1 or not all(isinstance(each, int) and 0 <= each < layers for each in dense):
                raise config.refuse(self.dense_key if step >= 1 else self.step_key, f"There are {layers} layers.")
            kinds = ["gated" if i in dense or (i + 1) % step else "gated_experts" for i in range(layers)]
        if self.dim_key:
            hidden = config.read("intermediate_size", REQUIRED, int)
            knobs |= {"FFN_DIM": hidden} if "gated" in kinds else {}  # without effect if no layer is dense
        return {**knobs, "FFN": shortest(kinds)}

    def keys(self, experiment: Any) -> dict[str, Any]:
        keys: dict[str, Any] = {
            self.number_keys[0]: experiment.NUM_EXPERTS,
            "num_experts_per_tok": experiment.EXPERTS_PER_TOKEN,
            "router_aux_loss_coef": experiment.AUX_LOSS,
        }
        if self.normalized_key:
            keys[self.normalized_key] = experiment.GATES == "top_k_then_softmax"
        if self.dim_key:
            keys[self.dim_key] = experiment.hidden_dim if experiment.EXPERT_DIM is None else experiment.EXPERT_DIM
            keys["intermediate_size"] = experiment.hidden_dim
        if self.dense_key:
            layers = layer_patterns.kinds(type(experiment), experiment.NUM_LAYERS)
            kinds = [layer.get("FFN", experiment.FFN) for layer in layers]
            keys |= {self.dense_key: [i for i, kind in enumerate(kinds) if kind == "gated"], self.step_key: 1}
        return keys


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value} is not a number")
    return float(value)


def shortest(values: Sequence[Any]) -> Any:
    """Returns the shortest pattern that repeats to `values`, possibly in part at the end; a value if all are equal."""
    for size in range(1, len(values) + 1):
        if all(value == values[i % size] for i, value in enumerate(values)):
            return values[0] if size == 1 else tuple(values[:size])
    return tuple(values)
