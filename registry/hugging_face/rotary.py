"""The relation of the keys and knobs of rotary positions."""

import dataclasses
import json
import math
import sys
from typing import Any

from registry.hugging_face.keys import Config, Knobs
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
        name = "rope_scaling" if scaling else "rope_parameters"
        base = self._read(config, self.base_key, "rope_theta", self.base)
        share = self._read(config, self.share_key, "partial_rotary_factor", self.share) if self.share_key else 1.0
        local_base = self._read(config, self.local_base_key, "", self.local_base) if self.local_base_key else None
        try:
            if local_base is not None and parameters:
                local_base, parameters = _of_windows(parameters, local_base)
            rest = dict(scaling or parameters)
            base = _above_0(rest.pop("rope_theta", base), "rope_theta")
            share = _above_0(rest.pop("partial_rotary_factor", share), "partial_rotary_factor")
            if share != 1 and not self.share_key:
                raise ValueError("Its partial_rotary_factor must be 1.")
            scaled = _scaled(rest, config.read("max_position_embeddings", None, int))
        except ValueError as error:
            raise config.refuse(name, str(error)) from error
        knobs = {"ROTARY_SHARE": share, **scaled}
        if local_base is None:
            return {"ROTARY_BASE": base, **knobs}
        # Patterns over layers, which the relation of windows fits to its own.
        return {"ROTARY_BASE": (local_base, base), **knobs, "ROTARY_SCALING": ("none", knobs["ROTARY_SCALING"])}

    def _read(self, config: Config, name: str, usual: str, default: float) -> float:
        value = config.read(name, default, float)
        if usual not in ("", name) and config.read(usual, value, float) != value:  # some versions write both, equal
            raise config.refuse(usual, f"It must equal {name} (got {value:g}), or be removed.")
        if value <= 0:
            raise config.refuse(name, "It must be above 0.")
        return value

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


# The functions below read the object of rope_scaling or rope_parameters, and raise a ValueError with advice on it.


def _of_windows(parameters: dict[str, Any], default: float) -> tuple[float, dict[str, Any]]:
    """Returns the base of layers with a window, and the parameters of the others."""
    if set(parameters) - {FULL, SLIDING} or not all(isinstance(each, dict | None) for each in parameters.values()):
        raise ValueError(f"It must have {FULL} and {SLIDING}.")
    local = dict(parameters.get(SLIDING) or {})
    base = _above_0(local.pop("rope_theta", default), f"rope_theta of {SLIDING}")
    if local.pop("rope_type", "default") != "default" or local:
        raise ValueError(f"{SLIDING} must have rope_type default.")
    return base, dict(parameters.get(FULL) or {})


def _scaled(found: dict[str, Any], longest: int | None) -> Knobs:
    """Returns the knobs of scaling; `longest` is the length of rows that scaling starts from if it states none."""
    kinds = [kind for kind in (found.pop("rope_type", None), found.pop("type", None)) if kind is not None]
    kind = kinds[0] if kinds else "default"
    if kinds[1:] and kinds[1] != kind:
        raise ValueError("Its rope_type and type differ. Remove one of them.")
    if kind == "default":
        if found:
            raise ValueError(f"{next(iter(found))} has no effect without scaling. Remove it.")
        return {"ROTARY_SCALING": "none"}
    if kind not in ("linear", "llama3", "yarn"):
        raise ValueError(f"rope_type must be linear, llama3 or yarn (got {kind}).")
    try:
        knobs: Knobs = {"ROTARY_SCALING": kind, "ROTARY_FACTOR": _above_0(found.pop("factor"), "factor")}
        if kind != "linear":
            knobs |= _band(kind, found, longest)
        if kind == "yarn":
            knobs["ROTARY_AMPLITUDE"] = _amplitude(knobs["ROTARY_FACTOR"], found)
    except KeyError as error:
        raise ValueError(f"Scaling of type {kind} needs {error.args[0]}.") from error
    if found:
        raise ValueError(f"{next(iter(found))} is unknown for type {kind}. Remove it.")
    return knobs


def _band(kind: str, found: dict[str, Any], longest: int | None) -> Knobs:
    """Returns the knobs of the frequencies that are scaled in part."""
    length = found.pop("original_max_position_embeddings", None)
    if length is None and longest is None:
        raise KeyError("original_max_position_embeddings")
    length = _above_0(longest if length is None else length, "original_max_position_embeddings")
    if not length.is_integer():
        raise ValueError(f"Its original_max_position_embeddings must be an integer (got {length:g}).")
    if kind == "llama3":
        names = ("low_freq_factor", "high_freq_factor")
        values = [found.pop(name) for name in names]
    else:
        names = ("beta_slow", "beta_fast")
        values = [found.pop(name, None) or usual for name, usual in zip(names, (1.0, 32.0), strict=True)]
    low, high = (_above_0(value, name) for name, value in zip(names, values, strict=True))
    if low >= high:
        raise ValueError(f"Its {names[0]} must be below {names[1]} = {high:g} (got {low:g}).")
    return {"ROTARY_LENGTH": int(length), "ROTARY_LOW": low, "ROTARY_HIGH": high}


def _amplitude(factor: float, found: dict[str, Any]) -> float | None:
    """Returns the factor on rotated channels of yarn; None if it is derived from the factor on lengths."""
    given, one, all_dims = (found.pop(name, None) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if found.get("truncate") is True:
        del found["truncate"]
    if given is not None or not (one and all_dims):
        return None if given is None else _above_0(given, "attention_factor")
    larger = lambda scale: 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
    return larger(_above_0(one, "mscale")) / larger(_above_0(all_dims, "mscale_all_dim"))


def _above_0(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"Its {name} must be a finite number above 0 (got {json.dumps(value)}).")
    return float(value)
