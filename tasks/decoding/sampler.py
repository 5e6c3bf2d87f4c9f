"""How the next token is drawn from logits."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Penalises what was drawn before, divides by the temperature, keeps the tokens that every rule set allows, draws.

    Rules apply in the order of the fields, each to the tokens that those before have left.
    """

    temperature: float = 1.0  # divides the logits; 0 takes the likeliest token
    repetition_penalty: float = 1.0  # divides logits of tokens drawn before; negative ones are multiplied
    top_k: int | None = None  # keep the k likeliest tokens (Fan et al. 2018, section 5.4)
    top_p: float | None = None  # the fewest that hold this probability (Holtzman et al. 2020, section 3.1)
    typical_p: float | None = None  # so many, nearest in surprise to the entropy (Meister et al. 2022, section 3)
    eta: float | None = None  # e: those above min(e, e^1/2 exp(-entropy)) (Hewitt et al. 2022, equation 6)

    def __post_init__(self):
        if self.temperature < 0:
            raise UsageError(f"temperature = {self.temperature} must be 0 (greedy) or above.")
        if self.repetition_penalty <= 0:
            raise UsageError(f"repetition_penalty = {self.repetition_penalty} must be above 0; 1 is none.")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k = {self.top_k} must be at least 1.")
        for name in ("top_p", "typical_p", "eta"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise UsageError(f"{name} = {share} must be above 0 and at most 1.")

    def __call__(
        self, logits: Float[Array, "b v"], rng: jax.Array, counts: Int[Array, "b v"] | None = None
    ) -> Int[Array, " b"]:
        """Token ids from float32 logits; `counts` says how often each token was drawn before."""
        if self.repetition_penalty != 1 and counts is not None:
            penalised = jnp.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = jnp.where(counts > 0, penalised, logits)  # Keskar et al. 2019, CTRL, section 4.1
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1)
        return jax.random.categorical(rng, self.keep(logits / self.temperature))

    def keep(self, logits: Float[Array, "b v"]) -> Float[Array, "b v"]:
        """The logits, with minus infinity for tokens that may not be drawn; the likeliest always may."""
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
    """Keeps the tokens of least rank, as few as hold that share of the probability."""
    order = jnp.argsort(jnp.where(jnp.isfinite(logits), rank, jnp.inf), axis=-1)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    kept = jnp.take_along_axis(before < share, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(kept, logits, -jnp.inf)


def _entropy(logits: Float[Array, "b v"]) -> Float[Array, "b 1"]:
    """In nats; what may not be drawn counts nothing."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.where(jnp.isfinite(log_p), jnp.exp(log_p) * log_p, 0), axis=-1, keepdims=True)
