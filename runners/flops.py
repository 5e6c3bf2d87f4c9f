"""Floating-point operations of a function, counted from its jaxpr; and what chips can do."""

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core

# bfloat16 matrix-product operations per second and chip, from the makers' data sheets.
PEAKS = {
    "TPU v2": 45e12 / 2,
    "TPU v3": 123e12 / 2,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


def peak_flops(device: Any) -> float | None:
    """The device's peak in operations per second (v2 and v3: one core is one device); None where it is not known."""
    kind = device.device_kind
    return next((peak for name, peak in PEAKS.items() if kind.startswith(name)), None)


def matmul_flops(function: Any, *arguments: Any) -> int:
    """Operations in the matrix products of `function` (2 per multiply and add), the body of a loop once per turn.

    Loops of unknown length (`while`) count once.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += turns * sum(_count(inner) for inner in _inner(equation.params))
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
