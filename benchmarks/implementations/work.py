"""Work of the implementations: sizes of models, tokens, hyperparameters of the update."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1  # on matrices and the embedding
CLIP_NORM = 1.0
NOT_A_TARGET = -100  # ignore_index of torch: a position without loss

# Makes `updates` updates and returns the loss of the last one, in nats.
Trainer = Callable[[int], float]
# Continues the prompt greedily; returns the new tokens, (rows, new).
Decoder = Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Gpt2Size:
    """GPT-2 (Radford et al. 2019): layer norms, biases, tanh-GELU, learned positions, a tied head; no dropout."""

    experiment: ClassVar[str] = "gpt2.Gpt2Small"  # whose knobs `overrides` sets
    format: ClassVar[str] = "gpt2"  # of the file of weights

    layers: int
    width: int
    heads: int
    context: int
    rows: int  # per batch
    vocab: int

    @property
    def weights_in_products(self) -> int:
        """Returns the number of weights in matrix products: those of layers, and the head's."""
        return 12 * self.layers * self.width**2 + self.vocab * self.width

    @property
    def weights(self) -> int:
        """Returns the number of weights, without norms and biases."""
        return self.weights_in_products + self.context * self.width

    @property
    def overrides(self) -> list[str]:
        """Returns the sizes as overrides of the experiment."""
        sizes = {
            "NUM_LAYERS": self.layers,
            "MODEL_DIM": self.width,
            "NUM_HEADS": self.heads,
            "SEQ_LEN": self.context,
            "BATCH_SIZE": self.rows,
            "VOCAB_SIZE": self.vocab,
        }
        return [f"{name}={value}" for name, value in sizes.items()]

    def rows_of_tokens(self, count: int | None = None, length: int | None = None) -> np.ndarray:
        """Returns random token ids, int32 (rows, positions); by default a batch of full context length."""
        shape = (self.rows if count is None else count, self.context if length is None else length)
        return np.random.default_rng(0).integers(0, self.vocab, shape, dtype=np.int32)

    def targets(self) -> np.ndarray:
        """Returns the token after each of `rows_of_tokens`; NOT_A_TARGET at the last position of a row."""
        tokens = self.rows_of_tokens()
        return np.concatenate([tokens[:, 1:], np.full_like(tokens[:, :1], NOT_A_TARGET)], axis=1)


@dataclasses.dataclass(frozen=True)
class LlamaSize(Gpt2Size):
    """Llama (Touvron et al. 2023): RMS norms, rotary positions, gated layers, grouped queries; a tied head."""

    experiment: ClassVar[str] = "templates.llama_lm.LlamaLm"
    format: ClassVar[str] = "llama"

    kv_heads: int
    hidden: int  # of feed-forward layers

    @property
    def weights_in_products(self) -> int:
        attention = 2 * self.width**2 * (1 + self.kv_heads / self.heads)
        return self.layers * (round(attention) + 3 * self.width * self.hidden) + self.vocab * self.width

    @property
    def weights(self) -> int:
        return self.weights_in_products

    @property
    def overrides(self) -> list[str]:
        sizes = [f"NUM_KV_HEADS={self.kv_heads}", f"FFN_DIM={self.hidden}"]
        return [*super().overrides, *sizes, "TIE_EMBEDDINGS=true", "GRADIENT_ACCUMULATION=1"]


SIZES = {
    "6x384": Gpt2Size(layers=6, width=384, heads=6, context=256, rows=8, vocab=256),
    "6x384 at 512": Gpt2Size(layers=6, width=384, heads=6, context=512, rows=8, vocab=256),
    "124M": Gpt2Size(layers=12, width=768, heads=12, context=512, rows=1, vocab=50257),
    "tiny": Gpt2Size(layers=2, width=32, heads=2, context=16, rows=2, vocab=64),
    "Llama 124M": LlamaSize(12, 768, 12, context=512, rows=1, vocab=50257, kv_heads=4, hidden=2400),
    "tiny Llama": LlamaSize(2, 32, 4, context=32, rows=2, vocab=64, kv_heads=2, hidden=48),
}
