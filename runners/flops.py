"""Floating-point operations of a function, counted from its jaxpr."""

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core


def matmul_flops(function: Any, *arguments: Any, leave_out: str | None = None) -> int:
    """Operations in the matrix products of `function` (2 per multiply and add), the body of a loop once per turn.

    Products inside the named scope `leave_out` do not count. Loops of unknown length (`while`) count once.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr, leave_out)


def _count(jaxpr: Any, leave_out: str | None) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if leave_out is not None and leave_out in str(equation.source_info.name_stack).split("/"):
            continue
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += turns * sum(_count(inner, leave_out) for inner in _inner(equation.params))
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
