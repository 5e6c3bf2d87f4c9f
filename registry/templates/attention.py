"""The knobs of attention, and the mixers that build on it: softmax and other score functions, static SGU."""

from typing import Any, Literal

import fiddle as fdl

from layers.attention.implementations import ContextParallel, Implementation
from layers.attention.softmax import Attention, QKNorm
from layers.attention.static_sgu import StaticSguMixer
from layers.errors import UsageError
from layers.positions.alibi import Alibi
from layers.positions.relative_bias import RelativeBias
from layers.positions.rotary_scaling import Llama3Scaling, RotaryScaling, YarnScaling
from layers.weights.initializers import Constant, FanIn
from registry.templates.model import ADDED, ModelKnobs
from registry.templates.parts import mixer
from registry.values import PerLayer, Positive, PositiveFloat

Scaling = Literal["none", "linear", "llama3", "yarn"]
TAKES: Any = {"MIXER_GATE": (False,), "POSITIONS": ("rotary", *ADDED, "alibi", "relative", "none")}


class AttentionKnobs(ModelKnobs):
    """Heads, positions and scores of attention."""

    # Model
    MIXER: PerLayer[str] = "attention"  # attention, static_sgu, vq, distance, or a user's (registry.templates.parts)
    MIXER_GATE: bool = False  # multiply values and outputs of the mixer by gates (gated attention unit)
    NUM_HEADS: Positive | None = 4  # query heads; None is MODEL_DIM / HEAD_DIM
    NUM_KV_HEADS: PerLayer[Positive | None] = None  # heads of keys and values; None is NUM_HEADS, 1 is multi-query
    HEAD_DIM: Positive | None = None  # size of a head's queries and keys; None is MODEL_DIM / NUM_HEADS
    ROTARY_BASE: PerLayer[PositiveFloat] = 10_000.0  # base of rotary wavelengths
    ROTARY_SHARE: PositiveFloat = 1.0  # share of a head's channels that rotate
    ROTARY_SCALING: PerLayer[Scaling] = "none"  # how rotary frequencies fit longer rows: linear, llama3 or yarn
    ROTARY_FACTOR: PositiveFloat = 1.0  # factor by which ROTARY_SCALING lengthens rows
    ROTARY_LENGTH: Positive | None = None  # length of rows before that, of llama3 and yarn; None is SEQ_LEN
    ROTARY_LOW: PositiveFloat = 1.0  # rotations in ROTARY_LENGTH, below which frequencies are divided by ROTARY_FACTOR
    ROTARY_HIGH: PositiveFloat | None = None  # and above which they are unchanged; None is 4 for llama3, 32 for yarn
    ROTARY_AMPLITUDE: PositiveFloat | None = None  # factor on rotated channels, of yarn; None is 0.1 ln(factor) + 1
    NUM_BUCKETS: Positive = 32  # number of buckets of relative positions
    MAX_DISTANCE: Positive = 128  # distances of this size and more share a bucket of relative positions
    ATTENTION_WINDOW: PerLayer[Positive | None] = None  # positions a query attends to, its own included; None: all
    ATTENTION_SCALE: float | None = None  # factor on the scores; None is HEAD_DIM^-1/2, or 1 / HEAD_DIM under muP
    ATTENTION_SOFTCAP: PositiveFloat | None = None  # scores become ATTENTION_SOFTCAP * tanh(scores / ATTENTION_SOFTCAP)
    SCORE_FUNCTION: str = "softmax"  # attention weights: a name in layers.attention.score_functions
    EXTRA_LOGIT: float | None = None  # logit of an extra key with value 0 in every softmax; None for no such key
    QK_NORM: QKNorm = "none"  # norm of queries and keys, per head or of all heads; see layers.attention.softmax
    MERGED_HEADS: bool = False  # store query, key and value weights with one dimension for all heads
    PADDED_HEADS: Positive | None = None  # pad heads of activations to this number if the mesh does not divide them
    ATTENTION_DROPOUT: float | None = None  # dropout rate on attention probabilities; None is DROPOUT
    SGU_WIDTH: Positive = 128  # largest distance that the filter of static_sgu covers
    SGU_POWER: float = 1.0  # power by which that filter falls with the distance

    # Computation
    ATTENTION_IMPLEMENTATION: Implementation = "auto"  # dense, blockwise, cudnn or splash; auto chooses for each layer
    ATTENTION_BLOCK: Positive = 512  # queries, and keys, of a block of the blockwise implementation
    CONTEXT_PARALLEL: ContextParallel = "auto"  # exchange along a split sequence: ring, all_gather or all_to_all

    # Optimization
    QUERY_INIT: Literal["fan_in", "head_scaled", "zero"] = "fan_in"  # of queries: head_scaled is times HEAD_DIM^-1/2

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        if self.NUM_HEADS is not None:
            return self.NUM_HEADS
        if self.HEAD_DIM is None or self.MODEL_DIM % self.HEAD_DIM:
            raise UsageError(
                f"HEAD_DIM must divide MODEL_DIM = {self.MODEL_DIM} (got {self.HEAD_DIM}). Change it or set NUM_HEADS."
            )
        return self.MODEL_DIM // self.HEAD_DIM

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        if self.HEAD_DIM is not None:
            return self.HEAD_DIM
        if self.NUM_HEADS is None or self.MODEL_DIM % self.NUM_HEADS:
            raise UsageError(
                f"NUM_HEADS must divide MODEL_DIM = {self.MODEL_DIM} (got {self.NUM_HEADS}). Change it or set HEAD_DIM."
            )
        return self.MODEL_DIM // self.NUM_HEADS

    @property
    def num_kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_heads if self.NUM_KV_HEADS is None else self.NUM_KV_HEADS

    @mixer("attention", **TAKES)
    def attention(self) -> fdl.Config:
        """Returns the config of attention."""
        if self.ATTENTION_WINDOW is not None and self.OBJECTIVE != "causal":
            self.refuse("ATTENTION_WINDOW", "OBJECTIVE", "A window holds earlier positions only: set one of them.")
        if self.PADDED_HEADS is not None and self.num_kv_heads not in (1, self.num_heads):
            self.refuse("PADDED_HEADS", "NUM_KV_HEADS", "Groups of heads cannot be padded: set one of them to none.")
        config = self.layer(
            Attention,
            model_dim=self.MODEL_DIM,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.score_scale(self.head_dim),
            qk_norm=self.QK_NORM,
            qk_scale=self.QK_NORM in ("rms", "rms_all_heads") and self.NORM_SCALE != "none",
            window=self.ATTENTION_WINDOW,
            softcap=self.ATTENTION_SOFTCAP,
            relative_bias=self.relative_bias(),
            extra_logit=self.EXTRA_LOGIT if self.SCORE_FUNCTION == "softmax" else None,
            score_function=self.SCORE_FUNCTION,
            score_length=self.SEQ_LEN if self.SCORE_FUNCTION != "softmax" else None,
            initializer=self.initializer(),
            out_initializer=self.branch_initializer(),
            query_initializer=self.query_initializer(),
            rotary_base=self.ROTARY_BASE if self.POSITIONS == "rotary" else None,
            merged_heads=self.MERGED_HEADS,
            padded_heads=self.PADDED_HEADS,
            causal=self.OBJECTIVE == "causal",
            use_bias="qkv" in self.BIASES,
            dropout_rate=self.DROPOUT if self.ATTENTION_DROPOUT is None else self.ATTENTION_DROPOUT,
            implementation=self.ATTENTION_IMPLEMENTATION,
            block_size=self.ATTENTION_BLOCK,
            context_parallel=self.CONTEXT_PARALLEL,
            dtype=self.DTYPE,
            **self.rms_epsilon,
            **self.rotation(self.head_dim),
        )
        if self.MAX_SEGMENTS is not None:
            config.max_segments = self.MAX_SEGMENTS + 1  # padding is another one
        if config.qk_scale and self.NORM_SCALE == "one_plus_vector":
            config.one_plus_scale = True
        if ("qkv" in self.BIASES) != ("attention_out" in self.BIASES):
            config.use_out_bias = "attention_out" in self.BIASES
        return config

    @mixer("static_sgu", **TAKES, OBJECTIVE=("causal",))
    def static_sgu(self) -> fdl.Config:
        """Returns the config of attention on half of the channels and a fixed filter on the other half."""
        if self.head_dim % 2 or self.MODEL_DIM % 2:
            raise UsageError(
                f"HEAD_DIM and MODEL_DIM must be even with MIXER = static_sgu (got {self.head_dim} and "
                f"{self.MODEL_DIM}). Change them."
            )
        config = self.attention()
        config.model_dim, config.head_dim = self.MODEL_DIM // 2, self.head_dim // 2
        config.scale = self.score_scale(self.head_dim // 2)
        self.rotation(self.head_dim // 2)  # raises an error if these heads cannot rotate
        return self.layer(StaticSguMixer, mixer=config, width=self.SGU_WIDTH, power=self.SGU_POWER)

    def rotation(self, head_dim: int) -> dict[str, Any]:
        """Returns the fields of attention for partial and scaled rotary positions; empty for plain ones."""
        if self.POSITIONS != "rotary":
            return {}
        rotated = int(head_dim * self.ROTARY_SHARE)
        if self.ROTARY_SHARE != 1 and (rotated % 2 or not 0 < rotated <= head_dim):
            raise UsageError(
                f"ROTARY_SHARE = {self.ROTARY_SHARE} of the {head_dim} channels of heads with MIXER = {self.MIXER} and "
                f"HEAD_DIM = {self.HEAD_DIM} must be an even number, up to all (got {rotated}). Change one of them."
            )
        fields: dict[str, Any] = {} if self.ROTARY_SHARE == 1 else {"rotary_share": self.ROTARY_SHARE}
        if self.ROTARY_SCALING == "none":
            return fields
        if self.ROTARY_SCALING == "linear":
            return fields | {"rotary_scaling": fdl.Config(RotaryScaling, factor=self.ROTARY_FACTOR)}
        yarn = self.ROTARY_SCALING == "yarn"
        high = self.ROTARY_HIGH or (32.0 if yarn else 4.0)
        if high <= self.ROTARY_LOW:
            self.refuse("ROTARY_LOW", "ROTARY_HIGH", f"ROTARY_LOW must be below {high:g}, the value of ROTARY_HIGH.")
        scaling = fdl.Config(
            YarnScaling if yarn else Llama3Scaling,
            factor=self.ROTARY_FACTOR,
            length=self.ROTARY_LENGTH or self.SEQ_LEN,
            low=self.ROTARY_LOW,
            high=high,
        )
        if yarn and self.ROTARY_AMPLITUDE is not None:
            scaling.attention_factor = self.ROTARY_AMPLITUDE
        return fields | {"rotary_scaling": scaling}

    def score_scale(self, head_dim: int) -> float | None:
        """Returns the factor on the scores of heads of this size; None is their default."""
        if self.QK_NORM == "l2":
            return None  # learned
        if self.ATTENTION_SCALE is None and self.PARAMETRIZATION != "standard":
            return 1 / head_dim
        return self.ATTENTION_SCALE

    def query_initializer(self) -> fdl.Config | None:
        """Returns the initializer of queries; None if it is that of keys and values."""
        if self.QUERY_INIT == "fan_in":
            return None
        return fdl.Config(Constant) if self.QUERY_INIT == "zero" else self.initializer(self.head_dim**-0.5)

    def relative_bias(self) -> fdl.Config | None:
        """Returns the config of a bias on the scores by distance, or None."""
        if self.POSITIONS == "alibi":
            return fdl.Config(Alibi, num_heads=self.num_heads)
        if self.POSITIONS != "relative":
            return None
        return self.layer(
            RelativeBias,
            num_heads=self.num_heads,
            num_buckets=self.NUM_BUCKETS,
            max_distance=self.MAX_DISTANCE,
            bidirectional=self.OBJECTIVE != "causal",
            # Its fan-in grows with the heads, but under muP the deviation of a bias is constant over widths.
            initializer=fdl.Config(FanIn, scale=self.parametrization.multiple**0.5),
        )
