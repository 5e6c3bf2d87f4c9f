"""Masked language modeling: some tokens are hidden and predicted from the tokens around them."""

import dataclasses

import numpy as np

from tasks.batch import Batch
from tasks.inputs.indexed import Shard, WrappedInput, generator


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedInput(WrappedInput):
    """The rows of `source` with tokens to predict at their own positions (Devlin et al. 2019, BERT, section 3.1).

    A share mask_rate + random_rate + same_rate of the non-padding tokens is drawn. A drawn token is replaced by
    `mask_id` or a random token, or kept; only drawn tokens have weight 1. The draw depends on the seed, the batch and
    the row only.
    """

    vocab_size: int  # random tokens are drawn below it
    mask_id: int  # token that replaces a hidden one
    mask_rate: float = 0.12  # share of tokens that become mask_id
    random_rate: float = 0.015  # share that become a random token
    same_rate: float = 0.015  # share that are kept, but predicted as well
    seed: int = 0
    batch_size: int = dataclasses.field(init=False, default=1)  # the source's
    seq_len: int = dataclasses.field(init=False, default=1)  # the source's

    def __post_init__(self):
        object.__setattr__(self, "batch_size", self.source.batch_size)
        object.__setattr__(self, "seq_len", self.source.seq_len)
        super().__post_init__()
        rates = (self.mask_rate, self.random_rate, self.same_rate)
        if min(rates) < 0 or sum(rates) > 1:
            raise ValueError(
                f"mask_rate, random_rate and same_rate must be shares with a sum of at most 1 (got {rates})"
            )
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id must be a token below vocab_size = {self.vocab_size} (got {self.mask_id})")

    def describe(self) -> str:
        chosen = self.mask_rate + self.random_rate + self.same_rate
        return f"{self.source.describe()}, {chosen:.1%} of the tokens to predict from the others"

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        batch = self.source.batch(index, shard)
        rows = (self._hide(index, row) for row in shard.rows(self.batch_size))
        draw, random = (np.stack(part) for part in zip(*rows, strict=True))
        real = batch.real
        masked = draw < self.mask_rate
        replaced = ~masked & (draw < self.mask_rate + self.random_rate)
        chosen = real & (draw < self.mask_rate + self.random_rate + self.same_rate)
        inputs = np.where(masked & real, self.mask_id, np.where(replaced & real, random, batch.inputs))
        return batch.replace(inputs=inputs.astype(np.int32), targets=batch.inputs, weights=chosen.astype(np.float32))

    def _hide(self, index: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        rng = generator(self.seed, index, row)
        return rng.random(self.seq_len), rng.integers(self.vocab_size, size=self.seq_len)
