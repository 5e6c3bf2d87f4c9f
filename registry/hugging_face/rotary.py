"""The relation of the keys and knobs of rotary positions."""

import dataclasses
import math
from typing import Any

from registry.hugging_face.keys import REQUIRED, Config, Knobs
from registry.hugging_face.relations import FULL, SLIDING


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


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value} is not a number")
    return float(value)
