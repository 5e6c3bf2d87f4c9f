"""Knobs of earlier versions that other knobs have replaced: today's values follow from all of them together."""

import ast
from collections.abc import Mapping
from typing import Any

# Earlier knob to those that replace it. NUM_LAYERS and POSITIONS have another value in Transformer-VQ.
REPLACED: dict[str, tuple[str, ...]] = {
    "PARALLEL_RESIDUAL": ("RESIDUAL",),
    "SHARED_NORM": ("RESIDUAL",),
    "USE_BIAS": ("BIASES",),
    "NORM_WEIGHTS": ("NORM_SCALE", "BIASES"),
    "GATED": ("FFN",),
    "GATED_EXPERTS": ("FFN",),
    "STATIC_SGU": ("MIXER",),
    "ATTENTION": ("MIXER",),
    "HEADS": ("MIXER_GATE", "FFN", "FFN_MULTIPLE", "NUM_HEADS", "NUM_KV_HEADS", "NUM_LAYERS"),
    "KEY_DIM": ("HEAD_DIM",),
    "CAUSAL": ("OBJECTIVE",),
    "RESIDUAL_INIT": ("BRANCH_INIT",),
}
LAYOUT_TABLES = ("WEIGHTS", "OPTIONAL_WEIGHTS", "ACTIVATIONS")  # held every row; now a layout has them
PROJECTIONS = ("qkv", "attention_out", "ffn")


def advice(name: str) -> str | None:
    """Returns the advice for an earlier knob; None for all others."""
    if name == "OPTIONAL_WEIGHTS":
        return "OPTIONAL_WEIGHTS was merged into WEIGHTS. State its rows there."
    return f"{name} was replaced. Set {' and '.join(REPLACED[name])}." if name in REPLACED else None


def todays_values(knobs: Mapping[str, str]) -> dict[str, str]:
    """Returns the knobs that replace earlier ones, with their values, for all knobs of an earlier experiment.

    Args:
      knobs: source code of each knob's value.
    """
    old = {name: ast.literal_eval(knobs[name]) for name in knobs if name in _READ}
    new: dict[str, Any] = {}
    if "PARALLEL_RESIDUAL" in old:
        branches = "parallel_shared_norm" if old["SHARED_NORM"] else "parallel"
        new["RESIDUAL"] = branches if old["PARALLEL_RESIDUAL"] else "sequential"
    if "CAUSAL" in old:
        new["OBJECTIVE"] = "causal" if old["CAUSAL"] else "masked"
    if "RESIDUAL_INIT" in old:
        new["BRANCH_INIT"] = old["RESIDUAL_INIT"]
    if "STATIC_SGU" in old:
        new["MIXER"] = "static_sgu" if old["STATIC_SGU"] else "attention"
    if "KEY_DIM" in old:
        new |= _transformer_vq(old)
    else:
        if "USE_BIAS" in old:
            head = ("head",) if "RESIDUAL_INIT" in old else ()
            norm = ("norm",) if old["NORM"] == "layer" else ()
            new["BIASES"] = (*PROJECTIONS, *norm, *head) if old["USE_BIAS"] else ()
        if "GATED" in old:
            dense = "gated" if old["GATED"] else "dense"
            experts = "gated_experts" if old.get("GATED_EXPERTS") else "experts"
            new["FFN"] = (experts, dense) if "GATED_EXPERTS" in old else dense
    return {name: repr(value) for name, value in new.items()}


def _transformer_vq(old: Mapping[str, Any]) -> dict[str, Any]:
    gated = old["HEADS"] == "shga"
    biases = ("norm",) if old["NORM_WEIGHTS"] else ()
    return {
        "MIXER": "vq" if old["ATTENTION"] == "vq" else "distance",
        "MIXER_GATE": gated,
        "FFN": ("none", "none") if gated else "dense",
        "FFN_MULTIPLE": 5.0 if old["HEADS"] == "mqa" else 4.0,
        "NUM_HEADS": (old["NUM_HEADS"] or 1) if gated else None,
        "NUM_KV_HEADS": 1 if old["HEADS"] == "mqa" else None,
        "HEAD_DIM": old["KEY_DIM"],
        "NUM_LAYERS": old["NUM_LAYERS"] * (2 if gated else 1),
        "NORM_SCALE": "vector" if old["NORM_WEIGHTS"] else "none",
        "BIASES": (*biases, "head") if old["USE_BIAS"] else biases,
        "POSITIONS": "distance" if old["POSITIONS"] == "none" else old["POSITIONS"],
    }


_READ = {*REPLACED, "NORM", "NUM_HEADS", "NUM_LAYERS", "POSITIONS"}
