"""Experts without slots: each expert multiplies the tokens that choose it, however many they are.

Choices are sorted by expert (Gale et al. 2023, MegaBlocks, section 5). If experts are split over a mesh axis that also
splits tokens, tokens are sent to the devices of their experts and back, by all-to-all. If the axis does not split
tokens, each device multiplies the choices of its own experts, and outputs are added up. Hidden units of experts may be
split over another axis, which adds outputs up too. Its devices have the same tokens: of each row, each of them sends a
share of the columns.

Dimensions: G groups, S tokens of a group, K choices of a token, E experts, M model, F hidden units.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.auxiliary import OVERHEAD
from layers.collectives import on_each_device
from layers.feed_forward.exchanges import PaddedExchange, RaggedExchange
from layers.feed_forward.grouped_rows import block_size, grouped_product, in_blocks, moved
from layers.platform import products_are_counted, target_platform
from layers.remat import named
from layers.specs import P, Specs, axes_of, split_of


class Matrices(NamedTuple):
    """Matrices of experts, in the dtype of the computation."""

    into_emf: Array
    gate_emf: Array | None  # None: not gated
    out_efm: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """The mesh axes over which tokens and experts are split, with their sizes."""

    groups: dict[str, int]  # axes of groups
    tokens: dict[str, int]  # axes of a group's tokens
    experts: dict[str, int]  # axes of experts; with a manual axis
    hidden: dict[str, int]  # axes of hidden units
    manual: dict[str, int]  # the axis that the computation around it handles manually, if it splits experts
    are_exchanged: bool  # experts' axes split tokens too

    @classmethod
    def of(cls, specs: Specs, activations: Specs, shape: tuple[int, ...], experts: int, hidden: int) -> "Split":
        """Returns the split of groups of tokens, of shape (g, s), and of experts with this number of hidden units."""
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or products_are_counted():
            return cls(groups={}, tokens={}, experts={}, hidden={}, manual={}, are_exchanged=False)
        groups, tokens = (_dividing(split_of(activations, "group_gsm", dim), shape[dim]) for dim in (0, 1))
        of_tokens = {*groups, *tokens, *mesh.manual_axes}
        names = [axis for axis in axes_of(specs["expert_in_emf"][0]) if mesh.shape[axis] > 1]
        shared = [axis for axis in names if axis in of_tokens]
        # Experts on one of several axes that both do and do not split tokens: gathered along the latter.
        of_experts = {axis: mesh.shape[axis] for axis in shared or names}
        of_experts = of_experts if experts % math.prod(of_experts.values()) == 0 else {}
        of_hidden = {a: n for a, n in split_of(specs, "expert_in_emf", 2).items() if a not in of_tokens | {*of_experts}}
        return cls(
            groups=groups,
            tokens=tokens,
            experts=of_experts,
            hidden=_dividing(of_hidden, hidden),
            manual={axis: size for axis, size in of_experts.items() if axis in mesh.manual_axes},
            are_exchanged=bool(shared) and bool(of_experts),
        )

    def sends_columns(self, model_dim: int) -> bool:
        """Returns whether devices that split hidden units send a share of the columns of rows each."""
        return self.are_exchanged and bool(self.hidden) and model_dim % math.prod(self.hidden.values()) == 0

    @property
    def shards(self) -> int:
        """Number of devices that share experts."""
        return math.prod(self.experts.values())


def _dividing(split: dict[str, int], size: int) -> dict[str, int]:
    """Returns the axes if their devices divide `size`; none otherwise."""
    return {} if size % math.prod(split.values()) else split


class Output(NamedTuple):
    """What experts return."""

    y_gsm: Float[Array, "g s m"]
    computed: Int[Array, " n"]  # choices that were computed, by part of the tokens


def apply_experts(
    split: Split,
    buffer: float | None,
    act: Callable[[Array], Array],
    x: Float[Array, "g s m"],
    expert_gsk: Int[Array, "g s k"],
    gate_gsk: Float[Array, "g s k"],
    matrices: Matrices,
) -> Output:
    """Returns each token's sum of its experts' outputs, weighted by `gate_gsk`.

    The program inside is that of one device: the compiler splits none of its arrays.

    Args:
      split: the mesh axes over which tokens and experts are split.
      buffer: rows that a device can receive, divided by those that it receives if the load is even; choices that find
        no place are not computed. None: all that all devices can send.
      act: the activation.
      x: groups of tokens.
      expert_gsk: chosen experts; the number of experts for choices that are not computed.
      gate_gsk: weights of outputs.
      matrices: of all experts, or of the local ones of a manual axis.
    """
    experts = matrices.into_emf.shape[0] * math.prod(split.manual.values())

    def local(shards: Int[Array, "1"], x: Any, expert_gsk: Any, gate_gsk: Any, matrices: Matrices) -> Output:
        x_tm, gate_tk = x.reshape(-1, x.shape[-1]), gate_gsk.reshape(-1, gate_gsk.shape[-1])
        expert_r = expert_gsk.reshape(-1)
        if split.are_exchanged:
            y_rm, computed = _exchanged(split, buffer, act, x_tm, expert_r, experts, matrices)
        else:
            own = expert_r - shards[0] * (experts // split.shards)
            is_own = (own >= 0) & (own < experts // split.shards)
            own = jnp.where(is_own, own, experts // split.shards)
            y_rm, computed = _multiplied(act, x_tm, own, matrices), jnp.sum(expert_r < experts)
        y_tkm = y_rm.reshape(*gate_tk.shape, -1)
        with jax.named_scope(OVERHEAD):
            y_tm = jnp.einsum("tkm,tk->tm", y_tkm, gate_tk.astype(y_tkm.dtype))
        if split.sends_columns(x_tm.shape[1]):
            y_tm = jax.lax.all_gather(y_tm, tuple(split.hidden), axis=1, tiled=True)
        elif added := (*split.hidden, *(() if split.are_exchanged else split.experts)):
            y_tm = jax.lax.psum(y_tm, added)
        return Output(y_tm.reshape(x.shape), computed[None])

    g, s = tuple(split.groups) or None, tuple(split.tokens) or None
    e = tuple(axis for axis in split.experts if axis not in split.manual) or None
    f = tuple(split.hidden) or None
    shards = jnp.arange(1 if split.are_exchanged else split.shards)
    if products_are_counted():
        return local(shards, x, expert_gsk, gate_gsk, matrices)
    into = P(e, None, f)
    of_matrices: Any = (into, None if matrices.gate_emf is None else into, P(e, f, None))
    in_specs = P(None if split.are_exchanged else e), P(g, s), P(g, s), P(g, s), Matrices(*of_matrices)
    outputs: Any = (P(g, s), P((*split.groups, *split.tokens) or None))
    return on_each_device(local, in_specs, Output(*outputs))(shards, x, expert_gsk, gate_gsk, matrices)


def _exchanged(
    split: Split,
    buffer: float | None,
    act: Callable[[Array], Array],
    x_tm: Float[Array, "t m"],
    expert_r: Int[Array, " r"],
    experts: int,
    matrices: Matrices,
) -> tuple[Float[Array, "r c"], Int[Array, ""]]:
    """Returns the outputs of choices whose experts may be on other devices, and the number of those computed.

    Outputs have a share of the columns if the split sends columns, all of them otherwise.
    """
    hidden, sends_columns = tuple(split.hidden), split.sends_columns(x_tm.shape[1])
    if sends_columns:
        width = x_tm.shape[1] // math.prod(split.hidden.values())
        x_tm = jax.lax.dynamic_slice_in_dim(x_tm, jax.lax.axis_index(hidden) * width, width, axis=1)
    of_device = experts // split.shards
    kind = PaddedExchange if target_platform() == "cpu" else RaggedExchange
    exchange = kind(axes=tuple(split.experts), devices=split.shards, buffer=buffer)
    plan = exchange.plan(jnp.minimum(expert_r // of_device, split.shards))
    received_pm = exchange.send(plan, moved(x_tm, *plan.rows_of(x_tm.shape[0])))
    expert_p = exchange.send_numbers(plan, expert_r % of_device, of_device)
    if sends_columns:
        received_pm = jax.lax.all_gather(received_pm, hidden, axis=1, tiled=True)
    y_pm = _multiplied(act, received_pm, expert_p, matrices, may_be_empty=True)
    if sends_columns:
        y_pm = jax.lax.psum_scatter(y_pm, hidden, scatter_dimension=1, tiled=True)
    returned_pm = exchange.send_back(plan, y_pm)
    return moved(returned_pm, plan.places.place_r, plan.places.row_p[:, None]), plan.sent


def _multiplied(
    act: Callable[[Array], Array],
    x_tm: Float[Array, "t m"],
    expert_r: Int[Array, " r"],
    matrices: Matrices,
    *,
    may_be_empty: bool = False,
) -> Float[Array, "r m"]:
    """Returns the outputs of the experts of each choice, r = t k; zero for choices of no expert of this device."""
    experts, tokens = matrices.into_emf.shape[0], x_tm.shape[0]
    per_token = expert_r.size // tokens
    blocks = in_blocks(expert_r, experts, block_size(expert_r.size, experts))
    places = blocks.places
    token_p = places.row_p // per_token  # beyond the last token for places without a row
    x_pm = moved(x_tm, token_p, places.place_r.reshape(tokens, per_token))
    product = lambda rows, matrix: grouped_product(rows, matrix, blocks, may_be_empty=may_be_empty)
    dense_in = lambda matrix: named(product(x_pm, matrix), "expert_hidden_egcf")
    h_pf = dense_in(matrices.into_emf)
    h_pf = act(h_pf) if matrices.gate_emf is None else act(dense_in(matrices.gate_emf)) * h_pf
    return moved(product(h_pf, matrices.out_efm), places.place_r, places.row_p[:, None])
