"""Rematerialization policies: what the backward pass recomputes instead of storing."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

REMAT_POLICIES = {
    "none": None,  # save what the backward pass needs, except what `recomputed` recomputes cheaply
    "full": jax.checkpoint_policies.nothing_saveable,  # save block inputs, recompute the rest
    "dots": jax.checkpoint_policies.dots_saveable,  # save results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # of those, the ones with weights
}


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def recomputed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Returns `function` with a backward pass that stores only its arguments.

    For functions of single elements or rows: their steps would be stored as arrays as large as the activations (six for
    GELU), and writing and reading those takes longer than recomputing them.
    """
    return jax.checkpoint(function, prevent_cse=False)
