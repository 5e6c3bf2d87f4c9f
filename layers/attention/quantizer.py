"""Vector quantization of keys, with codebooks that follow the keys by moving averages."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from layers.attention.code_cache import sum_by_code
from layers.auxiliary import METRICS, UPDATES, add_loss, add_metric, add_update
from layers.errors import UsageError
from layers.positions.segments import SegmentIds
from layers.specs import Specs
from layers.weights.initializers import Constant, Initializer
from layers.weights.weight import weight

CODEBOOKS = "codebooks"  # collection of the codebooks: state, not trained by gradient
_LEAST_COUNT = 0.01  # smaller counts are raised to this value


class CodebookUpdate(struct.PyTreeNode):
    """Statistics of one batch that update a codebook. Updates of parts of a batch add up with `+`."""

    sum_kcd: Float[Array, "*layers k c d"]  # sum of the keys nearest to each codeword
    count_kc: Float[Array, "*layers k c"]  # number of those keys
    candidates_kcd: Float[Array, "*layers k c d"] | None  # keys that replace dead codes
    found: Bool[Array, "*layers"] | None  # whether the batch has any keys
    decay: float = struct.field(pytree_node=False)
    reseed_below: float = struct.field(pytree_node=False)

    def __add__(self, other: "CodebookUpdate") -> "CodebookUpdate":
        total = self.replace(sum_kcd=self.sum_kcd + other.sum_kcd, count_kc=self.count_kc + other.count_kc)
        if self.found is None or other.found is None:
            return total
        newer = other.found[..., None, None, None]
        latest = lambda mine, theirs: jnp.where(newer, theirs, mine)
        candidates = jax.tree.map(latest, self.candidates_kcd, other.candidates_kcd)
        return total.replace(candidates_kcd=candidates, found=jnp.logical_or(self.found, other.found))

    def apply(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the codebook after the batch: `decay * old + (1 - decay) * batch`, with new keys for dead codes.

        A new key starts with twice the threshold as its count, so that keys can be assigned before it is replaced.
        """
        old_sum, old_count = weights["codebook_sum_kcd"], weights["codebook_count_kc"]
        new_sum = self.decay * old_sum + (1 - self.decay) * self.sum_kcd
        new_count = self.decay * old_count + (1 - self.decay) * self.count_kc
        if self.candidates_kcd is not None and self.found is not None:
            dead = (new_count < self.reseed_below) & self.found[..., None, None]
            start = 2 * self.reseed_below
            new_sum = jnp.where(dead[..., None], start * self.candidates_kcd, new_sum)
            new_count = jnp.where(dead, start, new_count)
        return {"codebook_sum_kcd": new_sum, "codebook_count_kc": new_count}


class Quantized(struct.PyTreeNode):
    """Keys replaced by their nearest codewords."""

    codes_bsk: Int[Array, "b s k"]  # index of the nearest codeword; num_codes for padding
    key_bskd: Float[Array, "b s k d"]  # the codeword, with the gradient of the key itself (straight-through)
    codebook_kcd: Float[Array, "k c d"]


class VectorQuantizer(nn.Module):
    """One codebook per key head (van den Oord et al. 2017, VQ-VAE; Lingle 2023, Transformer-VQ, section 3.4).

    A codeword is a running sum of keys over a running count, both exponential averages over the complete global batch,
    independent of its split over devices, blocks or micro-batches. All in float32.
    """

    SPECS: ClassVar[tuple[str, ...]] = ("codebook_sum_kcd", "codebook_count_kc")

    specs: Specs
    num_heads: int
    num_codes: int
    key_dim: int
    initializer: Initializer  # of the sums; the counts start at 1
    commit_weight: float = 1e-4  # factor of the commitment loss, the mean squared distance of keys to their codewords
    decay: float = 0.99  # share of the codebook that an update keeps
    inflation: float = 1.0  # factor on a batch's counts and sums, for references that count a batch more than once
    reseed_below: float | None = None  # codes with a smaller count are set to a random key of the batch; None: never
    detailed_metrics: bool = False  # also log distances and angles between codewords, quadratic in their number
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, key: Float[Array, "b s k d"], segment_ids: SegmentIds = None) -> Quantized:
        """Quantizes the keys; positions of segment 0 are not counted."""
        self._check()
        shape = (self.num_heads, self.num_codes, self.key_dim)
        common: Any = {"role": "state", "collection": CODEBOOKS}
        sum_kcd = weight(self, "codebook_sum_kcd", shape, init=self.initializer, fan_in=self.num_codes, **common)
        init: Any = {"init": Constant(value=1.0), "fan_in": 1}
        count_kc = weight(self, "codebook_count_kc", shape[:2], **init, **common)
        key = key.astype(jnp.float32)
        used_kc = jnp.maximum(count_kc, _LEAST_COUNT)
        codebook_kcd = jax.lax.stop_gradient(sum_kcd / used_kc[..., None])
        fixed = jax.lax.stop_gradient(key)
        products_bskc = jnp.einsum("bskd,kcd->bskc", fixed, codebook_kcd, precision="highest")
        squares_bsk, squares_kc = jnp.sum(fixed**2, axis=-1), jnp.sum(codebook_kcd**2, axis=-1)
        codes_bsk = jnp.argmin(squares_bsk[..., None] - 2 * products_bskc + squares_kc, axis=-1)
        nearest_bskd = jax.vmap(lambda book, codes: book[codes], in_axes=(0, 2), out_axes=2)(codebook_kcd, codes_bsk)
        error_bsk = jnp.sum((key - nearest_bskd) ** 2, axis=-1)
        if segment_ids is not None:
            real_bs1 = (segment_ids != 0)[..., None]
            codes_bsk, error_bsk = jnp.where(real_bs1, codes_bsk, self.num_codes), error_bsk * real_bs1
        commit = jnp.mean(jnp.sum(error_bsk, axis=-1))
        add_loss(self, "commit_loss", self.commit_weight * commit)
        self._update(fixed, codes_bsk)
        if self.is_mutable_collection(METRICS):
            self._report(commit, codebook_kcd, used_kc, *map(jax.lax.stop_gradient, (key, nearest_bskd, error_bsk)))
        straight_bskd = nearest_bskd + (key - fixed)
        return Quantized(codes_bsk, straight_bskd, codebook_kcd)

    def _check(self) -> None:
        if self.num_codes < 1:
            raise UsageError(f"num_codes must be at least 1 (got {self.num_codes}).")
        if not 0 <= self.decay <= 1:
            raise UsageError(f"The codebook decay must be from 0 to 1 (got {self.decay}).")
        if self.reseed_below is not None and self.reseed_below <= 0:
            raise UsageError(f"reseed_below must be above 0, or none (got {self.reseed_below}).")

    def _update(self, key_bskd: jax.Array, codes_bsk: jax.Array) -> None:
        if self.is_initializing() or not self.is_mutable_collection(UPDATES):
            return
        sums, counts = (jnp.sum(x, axis=0) for x in sum_by_code(codes_bsk, key_bskd, self.num_codes))
        candidates, found = None, None
        if self.reseed_below is not None:
            flat_tkd, real_t = (
                key_bskd.reshape(-1, *key_bskd.shape[2:]),
                codes_bsk[:, :, 0].reshape(-1) < self.num_codes,
            )
            upto_t = jnp.cumsum(real_t)
            rank_c = jax.random.randint(self.make_rng("dropout"), (self.num_codes,), 0, jnp.maximum(upto_t[-1], 1))
            chosen_c = jnp.searchsorted(upto_t, rank_c + 1)
            candidates, found = jnp.moveaxis(flat_tkd[chosen_c], 0, 1), upto_t[-1] > 0
        below = 0.0 if self.reseed_below is None else self.reseed_below
        scaled = (self.inflation * sums, self.inflation * counts)
        add_update(self, CODEBOOKS, CodebookUpdate(*scaled, candidates, found, self.decay, below))

    def _report(self, commit, codebook_kcd, used_kc, key, nearest, error_bsk) -> None:
        share_kc = used_kc / jnp.sum(used_kc, axis=-1, keepdims=True)
        entropy = -jnp.sum(share_kc * jnp.log(share_kc), axis=-1)
        add_metric(self, "commit_loss", commit)
        add_metric(self, "codebook_entropy", jnp.mean(entropy))  # nats
        add_metric(self, "codebook_perplexity", jnp.mean(jnp.exp(entropy)))
        add_metric(self, "codebook_usage_min", jnp.mean(jnp.min(used_kc, axis=-1)))
        add_metric(self, "codebook_usage_mean", jnp.mean(used_kc))
        add_metric(self, "codebook_usage_max", jnp.mean(jnp.max(used_kc, axis=-1)))
        add_metric(self, "codebook_dead", jnp.mean(jnp.sum((used_kc < 1) | (used_kc > 1e6), axis=-1) * 1.0))
        key_norm, nearest_norm = _norm(key), _norm(nearest)
        relative = jnp.clip(jnp.sqrt(error_bsk) / key_norm, 0, 10)
        add_metric(self, "quantization_error", jnp.mean(relative))
        if not self.detailed_metrics:
            return
        add_metric(self, "quantization_error_min", jnp.mean(jnp.min(relative, axis=1)))
        add_metric(self, "quantization_error_max", jnp.mean(jnp.max(relative, axis=1)))
        add_metric(self, "key_norm", jnp.mean(key_norm))
        add_metric(self, "quantized_key_norm", jnp.mean(nearest_norm))
        norm_kc = _norm(codebook_kcd)
        products = jnp.einsum("kcd,ked->kce", codebook_kcd, codebook_kcd, precision="highest")
        cosine = products / (norm_kc[:, :, None] * norm_kc[:, None, :])
        squares = jnp.sum(codebook_kcd**2, axis=-1)
        distance = jnp.sqrt(jnp.maximum(squares[:, :, None] + squares[:, None, :] - 2 * products, 0))
        for name, values in {
            "cosine": _below_diagonal(cosine),
            "distance": _below_diagonal(distance),
            "norm": norm_kc,
        }.items():
            for kind, fn in {"min": jnp.min, "mean": jnp.mean, "max": jnp.max}.items():
                add_metric(self, f"codebook_{name}_{kind}", jnp.mean(fn(values, axis=-1)))


def _norm(x: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.linalg.norm(x, axis=-1), 0.01)


def _below_diagonal(x: jax.Array) -> jax.Array:
    rows, columns = jnp.tril_indices(x.shape[-1], -1)
    return x[..., rows, columns]
