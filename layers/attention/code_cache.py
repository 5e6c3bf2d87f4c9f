"""Cache of VQ attention for the distant past: per code, the number of keys with it and the mean of their values."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.auxiliary import OVERHEAD
from layers.errors import UsageError, did_you_mean


class CodeCache(struct.PyTreeNode):
    """Counts and mean values per code, any leading dimensions. Float32, so that long sequences lose no precision."""

    mean_kcf: Float[Array, "*batch k c f"]  # mean of the values whose keys have the code; 0 if there are none
    count_kc: Float[Array, "*batch k c"]
    segment: Int[Array, "*batch"]  # segment of the values; only its queries read them; -1 while the cache is empty

    @classmethod
    def empty(cls, batch: tuple[int, ...], heads: int, codes: int, dim: int) -> "CodeCache":
        """Returns an empty cache."""
        zero = jnp.zeros((*batch, heads, codes), jnp.float32)
        return cls(jnp.zeros((*batch, heads, codes, dim), jnp.float32), zero, jnp.full(batch, -1, jnp.int32))


def merge(early: CodeCache, late: CodeCache) -> CodeCache:
    """Returns the merged cache, or `late` alone if its segment differs. Associative; an empty cache is neutral.

    Merges means, not sums, so that no number grows with the sequence (Lingle 2023, Transformer-VQ, appendix E).
    """
    segment = _later(early.segment, late.segment)
    early_kc = early.count_kc * (early.segment == segment)[..., None, None]
    count_kc = early_kc + late.count_kc
    total = jnp.maximum(count_kc, 1)
    mean_kcf = (early_kc / total)[..., None] * early.mean_kcf + (late.count_kc / total)[..., None] * late.mean_kcf
    return CodeCache(mean_kcf, count_kc, segment)


def _later(early: jax.Array, late: jax.Array) -> jax.Array:
    return jnp.where(late < 0, early, late)


def sum_by_code(
    codes: Int[Array, "*batch t k"], values: Float[Array, "*batch t k f"], num_codes: int
) -> tuple[Float[Array, "*batch k c f"], Float[Array, "*batch k c"]]:
    """Returns float32 sums of the values that share a code, and their counts; codes >= `num_codes` are ignored.

    A scatter on CPU; on other devices a product with the one-hot codes, which matrix units compute faster.
    """

    def scatter(codes: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(codes_t: jax.Array, values_tf: jax.Array) -> tuple[jax.Array, jax.Array]:
            zeros = jnp.zeros((num_codes, values_tf.shape[-1]), jnp.float32)
            sums = zeros.at[codes_t].add(values_tf.astype(jnp.float32), mode="drop")
            return sums, jnp.zeros(num_codes, jnp.float32).at[codes_t].add(1.0, mode="drop")

        one_per_head = jax.vmap(one, in_axes=(-1, -2))
        for _ in codes.shape[:-2]:
            one_per_head = jax.vmap(one_per_head)
        return one_per_head(codes, values)

    def product(codes: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        one_hot = jax.nn.one_hot(codes, num_codes, dtype=values.dtype)
        kinds: Any = {"preferred_element_type": jnp.float32, "precision": "highest"}
        sums = jnp.einsum("...tkc,...tkf->...kcf", one_hot, values, **kinds)
        return sums, jnp.sum(one_hot, axis=-3, dtype=jnp.float32)

    with jax.named_scope(OVERHEAD):
        sums: tuple[jax.Array, jax.Array] = jax.lax.platform_dependent(codes, values, cpu=scatter, default=product)
    return sums


def chunks(
    codes: Int[Array, "*batch t k"],
    values: Float[Array, "*batch t k f"],
    segment_ids: Int[Array, "*batch t"],
    num_codes: int,
) -> CodeCache:
    """Returns one cache per chunk of t tokens, of the tokens that share the segment of the chunk's last token."""
    segment = segment_ids[..., -1]
    codes = jnp.where((segment_ids == segment[..., None])[..., None], codes, num_codes)
    sum_kcf, count_kc = sum_by_code(codes, values, num_codes)
    return CodeCache(sum_kcf / jnp.maximum(count_kc, 1)[..., None], count_kc, segment)


def prefixes(start: CodeCache, parts: CodeCache, reduction: str, groups: int = 1) -> tuple[CodeCache, CodeCache]:
    """Returns the cache before each of R chunks, and the cache after all of them.

    Args:
      start: cache of everything before the chunks, leading dimension (b,).
      parts: caches of the chunks, leading dimensions (b, r).
      reduction: how the chunks are merged: `serial`, a scan with running means; `matmul`, one product with a
        triangular matrix (quadratic in R, without sequential steps); `assoc_scan`, a tree of merges; `sum`, a tree of
        sums that are divided at the end (large sums, so less exact).
      groups: number of groups of chunks that are reduced in parallel and merged afterwards: the number of devices
        that the sequence is split over.

    Raises:
      UsageError: `reduction` is unknown.
    """
    number = parts.count_kc.shape[1]
    if reduction not in _REDUCTIONS:
        raise UsageError(f"Unknown reduction '{reduction}'. {did_you_mean(reduction, _REDUCTIONS)}")
    if groups > 1 and number % groups == 0 and number > groups:
        split = jax.tree.map(lambda x: x.reshape(x.shape[0], groups, -1, *x.shape[2:]), parts)
        nothing = CodeCache.empty(parts.count_kc.shape[:1], *parts.mean_kcf.shape[2:])
        by_group = jax.vmap(_REDUCTIONS[reduction], in_axes=(None, 1), out_axes=1)
        within, totals = by_group(nothing, split)
        before, end = _assoc_scan(start, totals)
        merged = merge(jax.tree.map(lambda x: x[:, :, None], before), within)
        return jax.tree.map(lambda x: x.reshape(x.shape[0], number, *x.shape[3:]), merged), end
    # A serial scan over chunks on different devices would move every chunk to all of them.
    return _REDUCTIONS["assoc_scan" if groups > 1 and reduction == "serial" else reduction](start, parts)


def _serial(start: CodeCache, parts: CodeCache) -> tuple[CodeCache, CodeCache]:
    parts = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), parts)
    end, before = jax.lax.scan(lambda total, part: (merge(total, part), total), start, parts)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), before), end


def _split_last(start: CodeCache, through: CodeCache) -> tuple[CodeCache, CodeCache]:
    before = jax.tree.map(lambda first, rest: jnp.concatenate([first[:, None], rest[:, :-1]], axis=1), start, through)
    return before, jax.tree.map(lambda x: x[:, -1], through)


def _with_start(start: CodeCache, parts: CodeCache) -> CodeCache:
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[:, None], rest], axis=1), start, parts)


def _assoc_scan(start: CodeCache, parts: CodeCache) -> tuple[CodeCache, CodeCache]:
    through = jax.lax.associative_scan(merge, _with_start(start, parts), axis=1)
    return _split_last(start, jax.tree.map(lambda x: x[:, 1:], through))


def _sum(start: CodeCache, parts: CodeCache) -> tuple[CodeCache, CodeCache]:
    def add(early: CodeCache, late: CodeCache) -> CodeCache:
        segment = _later(early.segment, late.segment)
        same = (early.segment == segment)[..., None, None]
        total_kcf = same[..., None] * early.mean_kcf + late.mean_kcf
        return CodeCache(total_kcf, same * early.count_kc + late.count_kc, segment)

    all_parts = _with_start(start, parts)
    sums = all_parts.replace(mean_kcf=all_parts.mean_kcf * all_parts.count_kc[..., None])
    total = jax.lax.associative_scan(add, sums, axis=1)
    through = total.replace(mean_kcf=total.mean_kcf / jnp.maximum(total.count_kc, 1)[..., None])
    return _split_last(start, jax.tree.map(lambda x: x[:, 1:], through))


def _matmul(start: CodeCache, parts: CodeCache) -> tuple[CodeCache, CodeCache]:
    parts = _with_start(start, parts)
    number = parts.count_kc.shape[1]
    segment = jax.lax.associative_scan(_later, parts.segment, axis=1)
    # Chunks up to and including r that belong to the segment of chunk r.
    seen_brg = jnp.tril(jnp.ones((number, number), bool)) & (segment[:, :, None] == segment[:, None, :])
    count_brkc = jnp.einsum("brg,bgkc->brkc", seen_brg.astype(jnp.float32), parts.count_kc, precision="highest")
    share_bkcrg = jnp.where(seen_brg[:, None, None], jnp.moveaxis(parts.count_kc, 1, -1)[..., None, :], 0)
    share_bkcrg = share_bkcrg / jnp.maximum(jnp.moveaxis(count_brkc, 1, -1), 1)[..., None]
    mean_brkcf = jnp.einsum("bkcrg,bgkcf->brkcf", share_bkcrg, parts.mean_kcf, precision="highest")
    return _split_last(start, CodeCache(mean_brkcf[:, 1:], count_brkc[:, 1:], segment[:, 1:]))


_REDUCTIONS = {"serial": _serial, "matmul": _matmul, "assoc_scan": _assoc_scan, "sum": _sum}
