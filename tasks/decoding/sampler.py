"""Samplers: draw the next token from logits."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Sampling from logits with a repetition penalty, a temperature, and filters that restrict the set of tokens.

    Filters apply in the order of the fields, each to the tokens that the preceding ones keep.
    """

    temperature: float = 1.0  # divides the logits; 0 selects the likeliest token
    repetition_penalty: float = 1.0  # divides positive logits of tokens drawn before, multiplies negative ones
    top_k: int | None = None  # keep the k likeliest tokens (Fan et al. 2018, section 5.4)
    top_p: float | None = None  # keep the likeliest tokens up to this probability (Holtzman et al. 2020, section 3.1)
    typical_p: float | None = None  # the same by distance of surprise to entropy (Meister et al. 2022, section 3)
    eta: float | None = None  # keep tokens above min(eta, eta^1/2 exp(-entropy)) (Hewitt et al. 2022, equation 6)

    def __post_init__(self):
        if self.temperature < 0:
            raise UsageError(f"temperature must be at least 0 (got {self.temperature}). Set 0 for greedy decoding.")
        if self.repetition_penalty <= 0:
            raise UsageError(
                f"repetition_penalty must be above 0 (got {self.repetition_penalty}). Set 1 for no penalty."
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be at least 1 (got {self.top_k}). Omit it to keep all tokens.")
        for name in ("top_p", "typical_p", "eta"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise UsageError(f"{name} must be above 0 and at most 1 (got {share}). Omit it to keep all tokens.")

    def __call__(
        self, logits: Float[Array, "b v"], rng: jax.Array, counts: Int[Array, "b v"] | None = None
    ) -> Int[Array, " b"]:
        """Returns token ids drawn from float32 logits; `counts` is how often each token was drawn before."""
        logits = self._penalized(logits, counts)
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1)
        return jax.random.categorical(rng, self.keep(logits / self.temperature))

    def probabilities(self, logits: Float[Array, "b v"], counts: Int[Array, "b v"] | None = None) -> jax.Array:
        """Returns the probability of each token, float32 (b, v); arguments as those of a call."""
        logits = self._penalized(logits, counts)
        if self.temperature == 0:
            return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
        return jax.nn.softmax(self.keep(logits / self.temperature))

    def _penalized(self, logits: Float[Array, "b v"], counts: Int[Array, "b v"] | None) -> Float[Array, "b v"]:
        if self.repetition_penalty == 1 or counts is None:
            return logits
        penalized = jnp.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
        return jnp.where(counts > 0, penalized, logits)  # Keskar et al. 2019, CTRL, section 4.1

    def keep(self, logits: Float[Array, "b v"]) -> Float[Array, "b v"]:
        """Returns the logits, minus infinity for tokens that are filtered out; the likeliest token is always kept."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, self.top_k)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p is not None and self.top_p < 1:
            logits = _mass(logits, -jax.nn.log_softmax(logits), self.top_p)
        if self.typical_p is not None and self.typical_p < 1:
            surprise = -jax.nn.log_softmax(logits)
            logits = _mass(logits, jnp.abs(surprise - _entropy(logits)), self.typical_p)
        if self.eta is not None:
            threshold = jnp.minimum(self.eta, self.eta**0.5 * jnp.exp(-_entropy(logits)))
            likely = jax.nn.softmax(logits) >= threshold
            logits = jnp.where(likely | (logits == jnp.max(logits, axis=-1, keepdims=True)), logits, -jnp.inf)
        return logits


def _mass(logits: Float[Array, "b v"], rank: Float[Array, "b v"], share: float) -> Float[Array, "b v"]:
    """Keeps the fewest tokens of least rank whose total probability reaches `share`."""
    order = jnp.argsort(jnp.where(jnp.isfinite(logits), rank, jnp.inf), axis=-1)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    kept = jnp.take_along_axis(before < share, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(kept, logits, -jnp.inf)


def _entropy(logits: Float[Array, "b v"]) -> Float[Array, "b 1"]:
    """Returns the entropy in nats; tokens that are filtered out do not count."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.where(jnp.isfinite(log_p), jnp.exp(log_p) * log_p, 0), axis=-1, keepdims=True)
