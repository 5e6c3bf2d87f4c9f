"""The knobs of Transformer-VQ, and its mixers: attention over quantized keys, and its quadratic counterpart."""

from typing import Any, Literal

import fiddle as fdl

from layers.attention.gated import FullAttention
from layers.attention.quantizer import VectorQuantizer
from layers.attention.vq import VQAttention
from layers.errors import UsageError
from layers.weights.initializers import FanIn
from registry.templates.attention import AttentionKnobs
from registry.templates.model import ADDED
from registry.templates.parts import mixer
from registry.values import Positive

# Both mixers always score distances, and normalize queries and keys.
TAKES: Any = {"POSITIONS": ("distance", *ADDED), "OBJECTIVE": ("causal",), "BIASES": ("ffn", "norm", "head")}


class VQKnobs(AttentionKnobs):
    """Values, codebooks and caches of the mixers `vq` and `distance`."""

    # Model
    VALUE_DIM: Positive | None = None  # per head, of vq and distance; None: 2 MODEL_DIM / NUM_HEADS gated, or HEAD_DIM
    BLOCK_LEN: Positive = 512  # tokens processed at once; does not change outputs
    MEMORY_LEN: Positive | None = None  # last keys attended individually, largest distinct distance; None: BLOCK_LEN
    NUM_CODES: Positive = 512  # codewords per codebook
    CACHE: bool = True  # attend to older keys through per-code means; false ignores them
    GRADIENT_THROUGH_CACHE: bool = True  # pass gradients to keys and values before the block
    REDUCTION: Literal["serial", "matmul", "assoc_scan", "sum", "scan"] = "serial"  # how caches of blocks are summed
    COMMIT_WEIGHT: float = 1e-4  # factor of the commitment loss
    CODEBOOK_DECAY: float = 0.99  # share of the codebook that an update keeps
    CODEBOOK_INFLATION: float = 1.0  # factor on a batch's counts; the reference has devices times blocks
    RESEED_BELOW: float | None = None  # reset codes with a smaller running count to a random key of the batch
    CODEBOOK_METRICS: bool = False  # log distances and angles of codewords too
    SINUSOID_DROPOUT: float = 0.0  # dropout rate on the sines of distances; one mask per row

    @property
    def value_dim(self) -> int:
        """Size of one head's values."""
        if self.VALUE_DIM is not None:
            return self.VALUE_DIM
        if not self.MIXER_GATE:
            return self.head_dim
        if 2 * self.MODEL_DIM % self.num_heads:
            raise UsageError(
                f"NUM_HEADS must divide 2 * MODEL_DIM = {2 * self.MODEL_DIM} (got {self.num_heads}). Change it or set "
                f"VALUE_DIM."
            )
        return 2 * self.MODEL_DIM // self.num_heads

    @mixer("vq", **TAKES)
    def vq(self) -> fdl.Config:
        """Returns the config of attention in linear time over quantized keys (Lingle 2023)."""
        return self.layer(
            VQAttention,
            quantizer=self.quantizer(),
            block_length=self.BLOCK_LEN,
            memory_length=self.BLOCK_LEN if self.MEMORY_LEN is None else self.MEMORY_LEN,
            cache=self.CACHE,
            gradient_through_cache=self.GRADIENT_THROUGH_CACHE,
            reduction=self.REDUCTION,
            **self.gated_heads(),
        )

    @mixer("distance", **TAKES)
    def distance(self) -> fdl.Config:
        """Returns the config of the same attention in quadratic time, without codebooks, with all distances."""
        return self.layer(FullAttention, query_chunk=self.BLOCK_LEN, **self.gated_heads())

    def gated_heads(self) -> dict[str, Any]:
        """Returns the fields that both mixers share."""
        fields: dict[str, Any] = {
            "model_dim": self.MODEL_DIM,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "key_dim": self.head_dim,
            "value_dim": self.value_dim,
            "gated": self.MIXER_GATE,
            "initializer": self.initializer(),
            "wavelength": self.WAVELENGTH,
            "sinusoid_dropout": self.SINUSOID_DROPOUT,
            "dtype": self.DTYPE,
            **self.rms_epsilon,
        }
        return fields if self.BRANCH_INIT == "fan_in" else fields | {"out_initializer": self.branch_initializer()}

    def quantizer(self) -> fdl.Config:
        """Returns the config of the codebooks of one attention."""
        return self.layer(
            VectorQuantizer,
            num_heads=self.num_kv_heads,
            num_codes=self.NUM_CODES,
            key_dim=self.head_dim,
            initializer=fdl.Config(FanIn),
            commit_weight=self.COMMIT_WEIGHT,
            decay=self.CODEBOOK_DECAY,
            inflation=self.CODEBOOK_INFLATION,
            reseed_below=self.RESEED_BELOW,
            detailed_metrics=self.CODEBOOK_METRICS,
        )
