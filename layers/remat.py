"""Rematerialization policies: what the backward pass recomputes instead of storing."""

import contextlib
import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

from layers.platform import tracing_with

# Policies by names of activations (layers.auxiliary.watch): the output of a mixer, and the products into the hidden
# layer of a feed-forward layer, two thirds of its work with gates and half without.
_HIDDEN = ("hidden_bsf", "expert_hidden_egcf")
NAMES = {"hidden": _HIDDEN, "mixer_hidden": ("mixer_out", *_HIDDEN), "offload": ("mixer_out", *_HIDDEN)}
REMAT_POLICIES = {
    "none": None,  # save what the backward pass needs, except what `recomputed` recomputes cheaply
    "full": jax.checkpoint_policies.nothing_saveable,  # save block inputs, recompute the rest
    "dots": jax.checkpoint_policies.dots_saveable,  # save results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # of those, the ones with weights
    "hidden": jax.checkpoint_policies.save_only_these_names(*NAMES["hidden"]),  # of those, the ones into hidden layers
    "mixer_hidden": jax.checkpoint_policies.save_only_these_names(*NAMES["mixer_hidden"]),  # and outputs of mixers
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(  # like mixer_hidden, in the host's memory
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(NAMES["offload"]),
        offload_src="device",
        offload_dst="pinned_host",
    ),
}

_NAMED: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("named", default=())


def named_for(policy: str) -> contextlib.AbstractContextManager[None]:
    """Gives names to activations that are traced inside, if a policy of REMAT_POLICIES saves by names."""
    return tracing_with(_NAMED, NAMES.get(policy, ()))


def named(x: jax.Array, name: str) -> jax.Array:
    """Returns `x`, with a name if the policy of the enclosing stack saves it by that.

    Other policies get no names: an array and its named copy could both be saved.
    """
    return checkpoint_name(x, name) if name in _NAMED.get() else x


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def recomputed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Returns `function` with a backward pass that stores only its arguments.

    For functions of single elements or rows: their steps would be stored as arrays as large as the activations (six for
    GELU), and writing and reading those takes longer than recomputing them.
    """
    return jax.checkpoint(function, prevent_cse=False)
