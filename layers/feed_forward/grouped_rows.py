"""Rows grouped by expert: where each row goes, how it moves there and back, and products with its expert's matrix.

Dimensions: R rows, P places, E experts, M and F sizes of a matrix.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.platform import products_are_counted, target_platform

LARGEST_BLOCK = 512  # rows


class Places(NamedTuple):
    """Places of rows that are ordered by their group. Rows without a place have P, places without a row have R."""

    place_r: Int[Array, " r"]
    row_p: Int[Array, " p"]


class Blocks(NamedTuple):
    """Places in blocks of equal size, each of one expert: an expert's last block is filled up with places without a
    row, and blocks after those of the last expert have no rows."""

    places: Places
    expert_j: Int[Array, " j"]  # expert of each block
    used: Int[Array, ""]  # number of blocks with rows


def _ranks(group_r: Int[Array, " r"], groups: int) -> tuple[Int[Array, " r"], Int[Array, " e"]]:
    """Returns the number of earlier rows of the same group, for each row, and the rows of each group.

    Rows of group `groups` are in none of them.
    """
    rows = group_r.size
    order = jnp.argsort(group_r, stable=True)
    group_sorted = group_r[order]
    first_g = jnp.searchsorted(group_sorted, jnp.arange(groups + 1))
    rank_sorted = jnp.arange(rows) - first_g[group_sorted]
    return jnp.zeros(rows, jnp.int32).at[order].set(rank_sorted), jnp.diff(first_g)


def _placed(place_r: Int[Array, " r"], places: int) -> Places:
    rows = place_r.size
    row_p = jnp.full(places, rows, jnp.int32).at[place_r].set(jnp.arange(rows), mode="drop")
    return Places(place_r, row_p)


def in_parts(group_r: Int[Array, " r"], groups: int, size: int) -> Places:
    """Places rows in one part of `size` places for each group; rows that find no place in their part have none.

    Args:
      group_r: the group of each row; `groups` for rows of none.
      groups: number of groups.
      size: places of one part.
    """
    rank_r, _ = _ranks(group_r, groups)
    has_place = (group_r < groups) & (rank_r < size)
    return _placed(jnp.where(has_place, group_r * size + rank_r, groups * size), groups * size)


def in_order(group_r: Int[Array, " r"], groups: int) -> tuple[Places, Int[Array, " e"]]:
    """Places rows without gaps in the order of their groups, and returns the number of rows of each group.

    Args:
      group_r: the group of each row; `groups` for rows of none, which have no place.
      groups: number of groups.
    """
    rank_r, rows_g = _ranks(group_r, groups)
    first_g = jnp.concatenate([jnp.zeros(1, rows_g.dtype), jnp.cumsum(rows_g)])
    place_r = jnp.where(group_r < groups, first_g[group_r] + rank_r, group_r.size)
    return _placed(place_r, group_r.size), rows_g


def block_size(rows: int, experts: int) -> int:
    """Returns the rows of a block: a power of two, at most an eighth of an expert's mean if that is 8 or more.

    Blocks that are not full then add an eighth to the products at most.
    """
    largest = min(LARGEST_BLOCK, max(8, rows // (8 * experts)))
    return 1 << (largest.bit_length() - 1)


def in_blocks(expert_r: Int[Array, " r"], experts: int, block: int) -> Blocks:
    """Places rows in blocks of one expert each. All rows find a place, however they are distributed.

    Args:
      expert_r: the expert of each row; `experts` for rows of none.
      experts: number of experts.
      block: rows of a block.
    """
    rows = expert_r.size
    count = rows // block + min(experts, rows)  # each expert with rows has at most one block that is not full
    rank_r, rows_e = _ranks(expert_r, experts)
    end_e = jnp.cumsum(-(-rows_e // block))
    first_e = jnp.concatenate([jnp.zeros(1, end_e.dtype), end_e])
    place_r = jnp.where(expert_r < experts, first_e[expert_r] * block + rank_r, count * block)
    expert_j = jnp.minimum(jnp.searchsorted(end_e, jnp.arange(count), side="right"), experts - 1)
    return Blocks(_placed(place_r, count * block), expert_j, end_e[-1])


@jax.custom_vjp
def moved(x: Float[Array, "a m"], to_b: Int[Array, " b"], back_ak: Int[Array, "a k"]) -> Float[Array, "b m"]:
    """Returns the rows `x[to_b]`; zero for an index out of range.

    Args:
      x: rows.
      to_b: row of `x` at each place of the output.
      back_ak: places of the output that have each row of `x`, for the gradient; an index out of range is none.
    """
    return jnp.take(x, to_b, axis=0, mode="fill", fill_value=0)


def _moved_forward(x, to_b, back_ak):
    return moved(x, to_b, back_ak), back_ak


def _moved_backward(back_ak, gradient):
    return jnp.sum(jnp.take(gradient, back_ak, axis=0, mode="fill", fill_value=0), axis=1), None, None


moved.defvjp(_moved_forward, _moved_backward)


def grouped_product(
    x: Float[Array, "p m"], w_emf: Float[Array, "e m f"], blocks: Blocks, *, may_be_empty: bool = False
) -> Float[Array, "p f"]:
    """Returns each row of `x` multiplied by the matrix of its expert, in the dtype of `x`.

    Rows are multiplied block by block. On TPUs a kernel computes products that keep the rows (`jax.lax.ragged_dot`);
    elsewhere, and for the gradient of the matrices, XLA would multiply all rows by all matrices for it.

    Args:
      x: rows at the places of `blocks`.
      w_emf: a matrix for each expert.
      blocks: the expert of each block.
      may_be_empty: omit products of blocks without rows; worth a branch if there may be many of them.
    """
    if products_are_counted():  # one product for each row
        rows, sizes = blocks.places.place_r.size, jnp.zeros(w_emf.shape[0], jnp.int32)
        return jnp.pad(jax.lax.ragged_dot(x[:rows], w_emf, sizes), ((0, x.shape[0] - rows), (0, 0)))
    return _grouped(may_be_empty, x, w_emf, blocks.expert_j, blocks.used)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped(may_be_empty: bool, x: Array, w_emf: Array, expert_j: Array, used: Array) -> Array:
    return _rows_product(may_be_empty, x, w_emf, expert_j, used)


def _grouped_forward(may_be_empty, x, w_emf, expert_j, used):
    return _rows_product(may_be_empty, x, w_emf, expert_j, used), (x, w_emf, expert_j, used)


def _grouped_backward(may_be_empty, residual, gradient):
    x, w_emf, expert_j, used = residual
    to_x = _rows_product(may_be_empty, gradient, w_emf.swapaxes(1, 2), expert_j, used)
    return to_x, _matrices_product(may_be_empty, x, gradient, w_emf, expert_j, used), None, None


_grouped.defvjp(_grouped_forward, _grouped_backward)


def _rows_product(may_be_empty: bool, x: Array, w_emf: Array, expert_j: Array, used: Array) -> Array:
    """Returns rows (p, f) of the products of rows (p, m)."""
    x_jbm = x.reshape(expert_j.size, -1, x.shape[-1])
    if target_platform() == "tpu":
        is_used = jnp.arange(expert_j.size) < used
        sizes = jnp.zeros(w_emf.shape[0], jnp.int32).at[expert_j].add(x_jbm.shape[1] * is_used)
        return jax.lax.ragged_dot(x, w_emf, sizes)

    def step(_, block):
        index, x_bm, expert = block
        multiply = lambda: x_bm @ w_emf[expert]
        if not may_be_empty:
            return None, multiply()
        return None, jax.lax.cond(index < used, multiply, lambda: jnp.zeros((x_bm.shape[0], w_emf.shape[2]), x.dtype))

    _, y_jbf = jax.lax.scan(step, None, (jnp.arange(expert_j.size), x_jbm, expert_j))
    return y_jbf.reshape(x.shape[0], -1)


def _matrices_product(may_be_empty: bool, x: Array, gradient: Array, w_emf: Array, expert_j: Array, used: Array):
    """Returns the gradient of the matrices: sums of products of their rows, in float32 until the end."""

    def step(total_emf, block):
        index, x_bm, g_bf, expert = block
        add = lambda: total_emf.at[expert].add(jnp.einsum("bm,bf->mf", x_bm, g_bf, preferred_element_type=jnp.float32))
        return (jax.lax.cond(index < used, add, lambda: total_emf) if may_be_empty else add()), None

    split = lambda rows: rows.reshape(expert_j.size, -1, rows.shape[-1])
    blocks = (jnp.arange(expert_j.size), split(x), split(gradient), expert_j)
    total_emf, _ = jax.lax.scan(step, jnp.zeros(w_emf.shape, jnp.float32), blocks)
    return total_emf.astype(w_emf.dtype)
