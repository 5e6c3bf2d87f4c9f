"""The template of decoder-only language models."""

from typing import Any, Literal, Self

import fiddle as fdl

from layers.attention.softmax import Attention
from layers.block import ResidualBlock
from layers.embedding import Embedding, Unembedding
from layers.errors import UsageError
from layers.feed_forward.dense import FeedForward
from layers.language_model import LanguageModel
from layers.norm import LayerNorm, RMSNorm
from layers.positions.alibi import Alibi
from layers.positions.embeddings import LearnedPositions, SinusoidalPositions
from layers.specs import P, Specs
from layers.stack import Stack
from layers.weights.initializers import Constant, FanIn, InverseFanIn, Normal
from registry.templates.training import LanguageTraining
from registry.values import Positive, PositiveFloat
from tasks.parametrization import Parametrization

HeadInit = Literal["fan_in", "inverse_fan_in", "zero"]
Residual = Literal["sequential", "parallel", "parallel_shared_norm"]


class DecoderLm(LanguageTraining):
    """A causal transformer on bytes of text or on synthetic packed rows.

    Weights are split over "model" by heads, hidden units and vocabulary (Shoeybi et al. 2019, Megatron-LM) and over
    "data" by the other dimension (fully sharded); the batch is split over "data".
    """

    DEVICE_MESH_SHAPE = (-1, 1)

    # Model
    NUM_LAYERS: Positive = 4  # number of layers
    MODEL_DIM: Positive = 128  # width of the residual stream
    NUM_HEADS: Positive | None = 4  # query heads; None is MODEL_DIM / HEAD_DIM
    NUM_KV_HEADS: Positive | None = None  # heads of keys and values; None is NUM_HEADS, 1 is multi-query
    HEAD_DIM: Positive | None = None  # size of a head; None is MODEL_DIM / NUM_HEADS
    FFN_DIM: Positive | None = None  # hidden units; None is FFN_MULTIPLE * MODEL_DIM, rounded down
    FFN_MULTIPLE: PositiveFloat = 4.0  # hidden units over MODEL_DIM, if FFN_DIM is None
    ACTIVATION: str = "gelu_tanh"  # relu, squared_relu, gelu_tanh, gelu_erf or silu
    GATED: bool = False  # whether feed-forward layers are gated (GLU)
    NORM: Literal["rms", "layer"] = "rms"  # kind of normalization
    NORM_EPSILON: float | None = None  # added to the variance; None is 1e-6 for rms and 1e-5 for layer
    EMBEDDING_NORM: bool = False  # normalize the embedding
    QK_NORM: Literal["none", "rms", "l2"] = "none"  # norm of each head's query and key; see layers.attention.softmax
    POSITIONS: Literal["rotary", "learned", "sinusoidal", "alibi", "none"] = "rotary"  # position encoding
    ROTARY_BASE: PositiveFloat = 10_000.0  # base of rotary wavelengths
    RESIDUAL: Residual = "sequential"  # branches in sequence, in parallel, or in parallel after one shared norm
    USE_BIAS: bool = False  # biases in linear layers and layer norms
    TIE_EMBEDDINGS: bool = True  # use the embedding as the head
    ATTENTION_SCALE: float | None = None  # factor on the scores; None is HEAD_DIM^-1/2, or 1 / HEAD_DIM under muP
    ATTENTION_WINDOW: Positive | None = None  # positions a query attends to, its own included; None is unlimited
    DROPOUT: float = 0.0  # dropout rate on attention probabilities and residual branches
    EMBEDDING_DROPOUT: float | None = None  # dropout rate on the embedding; None is DROPOUT
    HIDDEN_DROPOUT: float | None = None  # dropout rate on the hidden layer; None is DROPOUT

    # Optimization
    PARAMETRIZATION: Literal["standard", "mup", "abs_mup"] = "standard"  # scaling by width: see tasks.parametrization
    BASE_WIDTH: Positive | None = None  # the width at which learning rates are tuned, under muP
    INIT_STDDEV: float | None = None  # standard deviation of matrices; None is fan_in^-1/2
    UNEMBEDDING_INIT: HeadInit | None = None  # initializer of an untied head; None: fan_in, or inverse_fan_in under muP

    # Computation
    DTYPE: Literal["float32", "bfloat16"] = "float32"  # of activations and matrix products
    REMAT: str = "none"  # what the backward pass recomputes: a name in layers.remat
    UNROLL: Positive = 1  # layers per iteration of the scan over layers

    # Placement
    WEIGHTS: Specs = Specs(
        embedding_vm=P("model", "data"),
        query_mnd=P("data", "model", None),
        key_mkd=P("data", "model", None),
        value_mkd=P("data", "model", None),
        attention_out_ndm=P("model", None, "data"),
        ffn_in_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
        norm_scale_m=P(None),
    )
    OPTIONAL_WEIGHTS: Specs = Specs(
        ffn_gate_mf=P("data", "model"),
        unembedding_mv=P("data", "model"),
        position_tm=P(None, "data"),
        query_scale_d=P(None),
        key_scale_d=P(None),
        attention_gain_n=P("model"),
        query_bias_nd=P("model", None),
        key_bias_kd=P("model", None),
        value_bias_kd=P("model", None),
        attention_out_bias_m=P(None),
        ffn_in_bias_f=P("model"),
        ffn_gate_bias_f=P("model"),
        ffn_out_bias_m=P(None),
        norm_bias_m=P(None),
    )
    ACTIVATIONS: Specs = Specs(
        tokens_bs=P("data", None),
        residual_bsm=P("data", None, None),
        query_bsnd=P("data", None, "model", None),
        key_bskd=P("data", None, "model", None),
        value_bskd=P("data", None, "model", None),
        hidden_bsf=P("data", None, "model"),
        logits_bsv=P("data", None, "model"),
    )

    @classmethod
    def Smoke(cls):
        small = super().Smoke()
        return small.derive(
            NUM_LAYERS=2,
            MODEL_DIM=32,
            NUM_HEADS=8,
            NUM_KV_HEADS=None if cls.NUM_KV_HEADS is None else max(1, 8 * cls.NUM_KV_HEADS // cls().num_heads),
            BASE_WIDTH=None if cls.BASE_WIDTH is None else 16,
            HEAD_DIM=None if cls.HEAD_DIM is None else 4,
            FFN_DIM=64,
            SEQ_LEN=32,
            BATCH_SIZE=8,
            EVAL_ROWS=16,
            DATA_PATH=None,
            WARMUP_STEPS=2,
            NUM_STEPS=30,
            LOG_EVERY=5,
            EVAL_EVERY=10,
            SAVE_EVERY=10,
        )

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
    def hidden_dim(self) -> int:
        """Number of hidden units of a feed-forward layer."""
        return int(self.FFN_MULTIPLE * self.MODEL_DIM) if self.FFN_DIM is None else self.FFN_DIM

    @classmethod
    def of_width(cls, width: int) -> type[Self]:
        """Returns the experiment with another MODEL_DIM: as many layers, heads of the same size, FFN_DIM in proportion.

        Raises:
          UsageError: a size would not be an integer.
        """
        sizes: dict[str, Any] = {"MODEL_DIM": width}
        for name in cls.grows_with_width():
            now = getattr(cls, name)
            if now is not None and (now, name) != (1, "NUM_KV_HEADS"):
                size = sizes[name] = now * width // cls.MODEL_DIM
                if size * cls.MODEL_DIM != now * width:
                    raise UsageError(
                        f"{name} = {now} at MODEL_DIM = {cls.MODEL_DIM} is not an integer when scaled to width {width}."
                    )
        if "NUM_HEADS" in sizes:
            sizes["HEAD_DIM"] = cls().head_dim
        return cls.derive(**sizes)

    @classmethod
    def grows_with_width(cls) -> tuple[str, ...]:
        """Returns the knobs that scale with MODEL_DIM if set; a single head of keys and values stays single."""
        return "NUM_HEADS", "NUM_KV_HEADS", "FFN_DIM"

    @property
    def parametrization(self) -> Parametrization:
        """The parametrization by width."""
        return Parametrization(rule=self.PARAMETRIZATION, width=self.MODEL_DIM, base_width=self.BASE_WIDTH)

    def initializer(self, scale: float = 1.0) -> fdl.Config:
        """Returns the initializer of a matrix, times `scale`."""
        if self.INIT_STDDEV is None:
            return fdl.Config(FanIn, scale=scale)
        return fdl.Config(Normal, stddev=self.INIT_STDDEV * self.parametrization.multiple**-0.5 * scale)

    def unembedding_initializer(self) -> fdl.Config:
        """Returns the initializer of an untied head."""
        standard = self.PARAMETRIZATION == "standard"
        kind = self.UNEMBEDDING_INIT or ("fan_in" if standard else "inverse_fan_in")
        if self.OPTIMIZER == "adafactor" and kind == "fan_in" and not standard:
            raise UsageError(
                "UNEMBEDDING_INIT = fan_in does not work with OPTIMIZER = adafactor under muP, because its updates are "
                "proportional to the weight. Set UNEMBEDDING_INIT to inverse_fan_in or zero."
            )
        if kind == "zero":
            return fdl.Config(Constant)
        if kind == "fan_in":
            return self.initializer()
        if self.INIT_STDDEV is None:
            return fdl.Config(InverseFanIn)
        return fdl.Config(Normal, stddev=self.INIT_STDDEV / self.parametrization.multiple)

    @property
    def fixed_stddev(self) -> float:
        """Standard deviation of tied embeddings and learned positions; constant over widths under muP."""
        return self.INIT_STDDEV or (self.MODEL_DIM / self.parametrization.multiple) ** -0.5

    def layer(self, cls: Any, **fields: Any) -> fdl.Config:
        """Returns the config of a module, with the specs that it lists."""
        if "param_dtype" in cls.__dataclass_fields__ and self.PARAM_DTYPE != "float32":
            fields["param_dtype"] = self.PARAM_DTYPE
        return fdl.Config(cls, specs=self.specs.of(cls), **fields)

    def model(self) -> fdl.Config:
        """Returns the config of the model: embedding, stack, norm, head."""
        common = {"vocab_size": self.vocab_size, "model_dim": self.MODEL_DIM, "dtype": self.DTYPE}
        # A tied head needs small rows for small initial logits; the factor restores the embedding's scale.
        stddev = self.fixed_stddev if self.TIE_EMBEDDINGS else 1.0
        scale = 1 / stddev if self.TIE_EMBEDDINGS and self.INIT_STDDEV is None else 1.0
        embedding = self.layer(Embedding, initializer=fdl.Config(Normal, stddev=stddev), scale=scale, **common)
        head = None
        if not self.TIE_EMBEDDINGS:
            head = self.layer(Unembedding, initializer=self.unembedding_initializer(), **common)
        elif self.UNEMBEDDING_INIT is not None:
            raise UsageError(
                f"UNEMBEDDING_INIT = {self.UNEMBEDDING_INIT} has no effect on a tied head. Set TIE_EMBEDDINGS=false."
            )
        elif self.PARAMETRIZATION != "standard":
            embedding.logits_scale = 1 / self.parametrization.multiple
        return fdl.Config(
            LanguageModel,
            activations=self.ACTIVATIONS.of(LanguageModel),
            embedding=embedding,
            positions=self.position_embedding(),
            stack=fdl.Config(
                Stack, block=self.block(), num_layers=self.NUM_LAYERS, unroll=self.UNROLL, remat=self.REMAT
            ),
            final_norm=self.norm(),
            head=head,
            embedding_norm=self.norm() if self.EMBEDDING_NORM else None,
            dropout_rate=self.DROPOUT if self.EMBEDDING_DROPOUT is None else self.EMBEDDING_DROPOUT,
        )

    def position_embedding(self) -> fdl.Config | None:
        """Returns the config of the positions that are added to the token embedding, or None."""
        if self.POSITIONS == "learned":
            init = fdl.Config(Normal, stddev=self.fixed_stddev)
            return self.layer(LearnedPositions, max_length=self.SEQ_LEN, model_dim=self.MODEL_DIM, initializer=init)
        if self.POSITIONS == "sinusoidal":
            return fdl.Config(SinusoidalPositions, model_dim=self.MODEL_DIM)
        return None

    def block(self) -> fdl.Config:
        """Returns the config of one layer."""
        return fdl.Config(
            ResidualBlock,
            activations=self.ACTIVATIONS.of(ResidualBlock),
            mixer_norm=self.norm(),
            mixer=self.mixer(),
            ffn_norm=None if self.RESIDUAL == "parallel_shared_norm" else self.norm(),
            ffn=self.ffn(),
            parallel=self.RESIDUAL != "sequential",
            dropout_rate=self.DROPOUT,
        )

    def norm(self) -> fdl.Config:
        """Returns the config of one normalization."""
        if self.NORM == "layer":
            return self.layer(LayerNorm, use_bias=self.USE_BIAS, **self.epsilon)
        return self.layer(RMSNorm, **self.epsilon)

    @property
    def epsilon(self) -> dict[str, float]:
        """The epsilon argument of normalizations; empty for their default."""
        return {} if self.NORM_EPSILON is None else {"epsilon": self.NORM_EPSILON}

    @property
    def branch_scale(self) -> float:
        """Factor on the initial weights of residual branches: (2 layers)^-1/2 (Radford et al. 2019, section 2.3)."""
        return (2 * self.NUM_LAYERS) ** -0.5

    def mixer(self) -> fdl.Config:
        """Returns the config of the mixer along the sequence (attention)."""
        scale = self.ATTENTION_SCALE
        if scale is not None and self.QK_NORM == "l2":
            raise UsageError("ATTENTION_SCALE has no effect with QK_NORM = l2, which learns the scale. Remove it.")
        if scale is None and self.PARAMETRIZATION != "standard":
            scale = 1 / self.head_dim
        return self.layer(
            Attention,
            activations=self.ACTIVATIONS.of(Attention),
            model_dim=self.MODEL_DIM,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads if self.NUM_KV_HEADS is None else self.NUM_KV_HEADS,
            head_dim=self.head_dim,
            scale=scale,
            qk_norm=self.QK_NORM,
            window=self.ATTENTION_WINDOW,
            relative_bias=fdl.Config(Alibi, num_heads=self.num_heads) if self.POSITIONS == "alibi" else None,
            initializer=self.initializer(),
            out_initializer=self.initializer(self.branch_scale),
            rotary_base=self.ROTARY_BASE if self.POSITIONS == "rotary" else None,
            use_bias=self.USE_BIAS,
            dropout_rate=self.DROPOUT,
            dtype=self.DTYPE,
        )

    def ffn(self) -> fdl.Config:
        """Returns the config of the feed-forward layer."""
        return self.layer(
            FeedForward,
            activations=self.ACTIVATIONS.of(FeedForward),
            model_dim=self.MODEL_DIM,
            hidden_dim=self.hidden_dim,
            initializer=self.initializer(),
            out_initializer=self.initializer(self.branch_scale),
            activation=self.ACTIVATION,
            gated=self.GATED,
            use_bias=self.USE_BIAS,
            dropout_rate=self.DROPOUT if self.HIDDEN_DROPOUT is None else self.HIDDEN_DROPOUT,
            dtype=self.DTYPE,
        )
