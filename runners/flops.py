"""Floating-point operations of a function, counted from its jaxpr."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.extend.core import primitives

from layers.errors import UsageError

Rule = Callable[[Any], int]
RULES: dict[str, Rule] = {}
# Primitives of jax.lax that its public list leaves out; none multiplies matrices.
MOVES = {"stack", "unstack", "split", "tile", "select_and_gather_add"}
STANDARD = {value.name for value in vars(primitives).values() if isinstance(value, core.Primitive)} | MOVES


def matmul_flops(function: Any, *arguments: Any, leave_out: str | None = None) -> int:
    """Operations in the matrix products of `function` (2 per multiply and add), a loop's body times its length.

    Products inside the named scope `leave_out` do not count. Loops of unknown length (`while`) count once. Causal
    attention counts all scores, by every implementation, so that figures of different devices can be compared.

    Raises:
      UsageError: a primitive that may multiply matrices, such as a kernel, has no rule.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr, leave_out)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: registers `equation -> operations` for primitives of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


@rule("dot_general")
def _dot_general(equation: Any) -> int:
    ((contracted, _), _) = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)


@rule("ragged_dot_general")
def _ragged_dot_general(equation: Any) -> int:
    numbers = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    ((contracted, _), _) = numbers
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)


@rule("conv_general_dilated")
def _convolution(equation: Any) -> int:
    kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    outputs = kernel[numbers.rhs_spec[0]]
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // outputs


@rule("dot_product_attention_fwd_wrapper", "dot_product_attention_fp8_fwd_wrapper")
def _cudnn_forward(equation: Any) -> int:
    """Scores and their sum over values: two products."""
    return 2 * _cudnn_product(equation)


@rule("dot_product_attention_bwd_wrapper", "dot_product_attention_fp8_bwd_wrapper")
def _cudnn_backward(equation: Any) -> int:
    """Gradients of values, probabilities, queries and keys: four products; the recomputed scores do not count."""
    return 4 * _cudnn_product(equation)


def _cudnn_product(equation: Any) -> int:
    """One product of jax.nn.dot_product_attention by cuDNN: (b, t, n, d) by (b, s, k, d), or heads before positions."""
    query, key = (variable.aval.shape for variable in equation.invars[:2])
    heads_first = equation.params["layout"] == 1
    positions = key[2] if heads_first else key[1]
    return 2 * math.prod(query) * positions


@rule("pallas_call")
def _pallas(equation: Any) -> int:
    """The kernel's own estimate; without one its body, once for each point of the grid."""
    estimate = equation.params.get("cost_estimate")
    if estimate is not None:
        return int(estimate.flops)
    grid = equation.params["grid_mapping"].grid
    if not all(isinstance(size, int) for size in grid):
        raise _no_rule("pallas_call with a dynamic grid")
    return math.prod(grid) * sum(_count(inner, None) for inner in _inner(equation.params))


def _count(jaxpr: Any, leave_out: str | None) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if leave_out is not None and leave_out in str(equation.source_info.name_stack).split("/"):
            continue
        name = equation.primitive.name
        inner = list(_inner(equation.params))
        if name in RULES:
            total += RULES[name](equation)
        elif inner:
            turns = equation.params.get("length", 1) if name == "scan" else 1
            total += turns * sum(_count(body, leave_out) for body in inner)
        elif name not in STANDARD and _may_multiply(equation):
            raise _no_rule(f"the primitive '{name}'")
    return total


def _may_multiply(equation: Any) -> bool:
    """Whether an opaque primitive takes two arrays that a matrix product could take."""
    shapes = [v.aval for v in equation.invars if hasattr(v.aval, "shape") and hasattr(v.aval, "dtype")]
    return sum(len(a.shape) >= 2 and bool(jnp.issubdtype(a.dtype, jnp.floating)) for a in shapes) >= 2


def _no_rule(subject: str) -> UsageError:
    return UsageError(
        f"FLOPs of {subject} cannot be counted. Register a function of its equation with @runners.flops.rule(NAME)."
    )


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
