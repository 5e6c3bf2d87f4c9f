"""Floating-point operations of a function, counted from its jaxpr."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core

from layers.errors import UsageError

Rule = Callable[[Any], int]
"""Operations of one equation of a jaxpr, from its `params` and the shapes of `invars` and `outvars`."""


def matmul_flops(function: Any, *arguments: Any, leave_out: str | None = None) -> int:
    """Returns the FLOPs in the matrix products of `function` (2 per multiply-add), over all devices.

    A loop's body counts once per iteration, and once in loops of unknown length (`while`); the largest branch of a
    `cond` counts. A causal mask does not reduce the count, even if a kernel skips masked blocks. Solvers,
    factorizations and Fourier transforms count as zero, as do products inside the named scope `leave_out`.

    Raises:
      UsageError: an operation hides its work from JAX and has no entry in RULES.
    """
    return matmul_flops_by_dtype(jax.make_jaxpr(function)(*arguments), leave_out=leave_out).total()


def matmul_flops_by_dtype(closed_jaxpr: core.ClosedJaxpr, *, leave_out: str | None = None) -> Counter[str]:
    """Returns the FLOPs of `matmul_flops` of a traced function, by the dtype of the products' operands, the wider one.

    Raises:
      UsageError: as in `matmul_flops`.
    """
    return _count(closed_jaxpr.jaxpr, leave_out)


def _count(jaxpr: Any, leave_out: str | None) -> Counter[str]:
    scopes = lambda equation: str(equation.source_info.name_stack).split("/")
    counted = (e for e in jaxpr.eqns if leave_out is None or leave_out not in scopes(e))
    return sum((_operations(equation, leave_out) for equation in counted), Counter())


def _operations(equation: Any, leave_out: str | None) -> Counter[str]:
    params, name = equation.params, equation.primitive.name
    for key in (params.get("target_name"), name):  # the kernel of an ffi_call, or the primitive
        if key in RULES:
            return Counter({_dtype(equation): RULES[key](equation)})
    if params.get("cost_estimate") is not None:  # of a Pallas kernel
        return Counter({_dtype(equation): params["cost_estimate"].flops})
    inner = [_count(jaxpr, leave_out) for jaxpr in _inner(params)]
    if not inner and name not in _WITHOUT_PRODUCTS:
        raise _opaque(equation)
    found = max(inner, key=Counter.total) if name == "cond" else sum(inner, Counter())
    times = _times(equation) if found else 1
    return Counter({dtype: times * flops for dtype, flops in found.items()})


def _dtype(equation: Any) -> str:
    """Returns the dtype of the first two operands, the wider one."""
    return max((variable.aval.dtype for variable in equation.invars[:2]), key=lambda dtype: dtype.itemsize).name


def _times(equation: Any) -> int:
    """Returns how many times the inner jaxprs of an equation run, over all devices."""
    params = equation.params
    match equation.primitive.name:
        case "scan":
            return params["length"]
        case "shard_map":  # its shapes are those of one device's shards
            return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
        case "pallas_call":
            grid = params["grid_mapping"].grid
            if not all(isinstance(size, int) for size in grid):
                raise _opaque(equation)
            return math.prod(grid)
    return 1


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def _opaque(equation: Any) -> UsageError:
    name = equation.primitive.name
    if name == "pallas_call":
        return UsageError(
            f"The FLOPs of the Pallas kernel '{equation.params['name']}' cannot be counted: its grid is not static. "
            f"Give its pallas_call a cost_estimate."
        )
    key = equation.params.get("target_name", name)
    return UsageError(
        f"The FLOPs of '{key}' (primitive {name}) cannot be counted: its work is hidden from JAX. Give "
        f"runners.flops.RULES['{key}'] a function that counts an equation's FLOPs, or, inside a Pallas kernel, give "
        f"the pallas_call a cost_estimate."
    )


def _dot_general(equation: Any) -> int:
    ((contracted, _), _) = equation.params["dimension_numbers"]
    return _products(equation, contracted)


def _products(equation: Any, contracted: Any) -> int:
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)


def _ragged_dot_general(equation: Any) -> int:
    """Returns the FLOPs of a ragged product: each row of the ragged dimension multiplies the matrix of its group."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    total = _products(equation, contracted)
    if numbers.lhs_ragged_dimensions[0] in contracted:  # the output has a leading dimension of groups
        return total // equation.outvars[0].aval.shape[0]
    return total


def _convolution(equation: Any) -> int:
    """Returns the FLOPs of a convolution: each output sums over kernel positions and input channels, with padding."""
    kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    return 2 * math.prod(out) * math.prod(kernel) // kernel[equation.params["dimension_numbers"].rhs_spec[0]]


def _fused_attention(products_per_score: int) -> Rule:
    """Returns the rule of cuDNN's attention: 2 products in the forward pass, 5 in the backward pass.

    The forward pass computes scores and weighted values, the backward pass the scores again and four gradient products.
    """

    def rule(equation: Any) -> int:
        # (b, t, n, d) in layout 0, (b, n, t, d) in layout 1; the dimensions of query and value differ in the last one.
        query, value, page_table = (equation.invars[i].aval.shape for i in (0, 2, 8))
        if math.prod(page_table):  # paged keys and values: the number of pages that a row reads is unknown
            raise _opaque(equation)
        keys = value[2 if equation.params.get("layout") else 1]
        rows = math.prod(query[:-1])
        scores, mixed = (2 * rows * keys * dim for dim in (query[-1], value[-1]))
        return (scores + mixed) * (products_per_score // 2) + scores * (products_per_score % 2)

    return rule


RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot_general,
    "conv_general_dilated": _convolution,
    # By these names in jax._src.cudnn.fused_attention_stablehlo.
    "dot_product_attention_fwd_wrapper": _fused_attention(2),
    "dot_product_attention_bwd_wrapper": _fused_attention(5),
}
"""FLOP counts by the name of a primitive or the target name of an `ffi_call`. Code that calls a custom kernel adds the
kernel's rule here."""


_UNEXPORTED = """
accum_grad_in_ref addupdate all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start
all_gather_start all_to_all_done all_to_all_start broadcast_to check cholesky_update create_linear dce_sink
debug_callback debug_print delay dim_as_value dimension_size dma_start dma_wait empty empty_ref free_ref freeze
from_edtype geqp3 geqrf get_global inspect_sharding iota_2x32_shape layout_constraint
lu_pivots_to_permutation masked_load masked_swap mulhi multiple_of new_ref num_programs optimization_barrier ormqr
pbroadcast pbroadcast_done pbroadcast_start philox2x32 philox4x32 pin platform_index ppermute_done ppermute_start
precv preduced program_id psend psum_done psum_invariant psum_invariant_start psum_start pvary
random_clone random_unwrap random_wrap reciprocal reduce_scatter reduce_scatter_done reduce_scatter_start
reduced_vary_cast_p reshard scatter-sub semaphore_read semaphore_signal semaphore_wait shape_assertion split stack
stage threefry4x32 tie tile to_edtype unpin unreachable unreduced_psum unreduced_psum_start unreduced_reduce_scatter
unreduced_reduce_scatter_start unstack vary_unreduced_cast_p with_memory_space_constraint zeros_like
"""
# JAX's own primitives without matrix products: all that it exports, and those that it does not export.
_WITHOUT_PRODUCTS = {p.name for p in vars(core.primitives).values() if isinstance(p, core.Primitive)} | set(
    _UNEXPORTED.split()
)
