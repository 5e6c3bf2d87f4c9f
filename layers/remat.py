"""What is computed again on the way back, rather than kept."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

REMAT_POLICIES = {
    "none": None,  # keep what the way back needs, but for what `recomputed` is cheap to compute again
    "full": jax.checkpoint_policies.nothing_saveable,  # keep block inputs, compute the rest again
    "dots": jax.checkpoint_policies.dots_saveable,  # keep results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # of those, the ones with weights
}


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def recomputed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, of which the way back keeps the arguments alone.

    For functions of single elements or rows: their steps would be kept as arrays as large as the activations (six for
    GELU), and writing and reading those takes longer than computing them again.
    """
    return jax.checkpoint(function, prevent_cse=False)
