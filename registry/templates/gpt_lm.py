"""The template of fattorib's GPT transformers: ALiBi, parallel residuals, static SGU, head-QK."""

import fiddle as fdl

from layers.attention.softmax import Attention
from layers.attention.static_sgu import StaticSguMixer
from layers.errors import UsageError
from layers.head_qk import HeadQK
from layers.specs import P, Specs
from layers.weights.initializers import Constant, Orthogonal
from registry.templates.decoder import DecoderLm
from registry.values import Positive


class GptLm(DecoderLm):
    """GPT-2 (Radford et al. 2019) as fattorib/transformer trains it.

    Layer norms, tanh-GELU, biases, a tied embedding, initial values N(0, 0.02) with residual branches scaled by
    (2 layers)^-1/2; ALiBi (Press et al. 2022), or learned positions; residual branches sequential, or parallel after a
    shared norm. Gradients are clipped entry by entry; weight decay does not act on biases, norms and positions. The
    embedding and the hidden layer have no dropout.
    """

    NUM_LAYERS = 12
    MODEL_DIM = 768
    NUM_HEADS = 12
    VOCAB_SIZE = 50304
    SEQ_LEN = 1024
    NORM = "layer"
    NORM_EPSILON = 1e-6
    POSITIONS = "alibi"
    USE_BIAS = True
    INIT_STDDEV = 0.02
    DROPOUT = 0.1
    EMBEDDING_DROPOUT = 0.0
    HIDDEN_DROPOUT = 0.0
    STATIC_SGU: bool = False  # pass half of the channels through a fixed filter instead of attention
    SGU_WIDTH: Positive = 128  # largest distance that the filter covers
    SGU_POWER: float = 1.0  # power by which the filter falls with the distance
    HEAD_QK: Positive | None = None  # key size of a pointer head to earlier tokens of the row; None for no head

    LEARNING_RATE = 8e-4
    WARMUP_STEPS = 2000
    DECAY_STEPS = 58_000
    NUM_STEPS = 60_000
    CLIP_NORM = None
    CLIP_VALUE = 1.0
    NO_DECAY = ("position_tm",)
    BATCH_SIZE = 512
    LOG_EVERY = 100
    EVAL_EVERY = 500
    EVAL_ROWS = None
    SAVE_EVERY = 500
    DTYPE = "bfloat16"

    # Placement
    OPTIONAL_WEIGHTS: Specs = DecoderLm.OPTIONAL_WEIGHTS | Specs(
        pointer_query_mc=P("data", None), pointer_key_mc=P("data", None)
    )

    @classmethod
    def Smoke(cls):
        learned = {"LEARNING_RATE": 5e-3, "DECAY_STEPS": None, "DTYPE": "float32", "DROPOUT": 0.0}
        pieces = learned["GRADIENT_ACCUMULATION"] = min(cls.GRADIENT_ACCUMULATION, 2)
        learned["BATCH_SIZE"] = 8 * pieces
        return super().Smoke().derive(**learned, VOCAB_SIZE=264, HEAD_QK=None if cls.HEAD_QK is None else 8)

    def model(self) -> fdl.Config:
        config = super().model()
        if self.HEAD_QK is not None:
            config.pointer = self.layer(
                HeadQK,
                model_dim=self.MODEL_DIM,
                size=self.HEAD_QK,
                query_initializer=fdl.Config(Constant),
                key_initializer=fdl.Config(Orthogonal, scale=0.1),
                dtype=self.DTYPE,
            )
        return config

    def mixer(self) -> fdl.Config:
        config = super().mixer()
        config.specs = self.specs.of(Attention)
        if not self.STATIC_SGU:
            return config
        if self.head_dim % 2 or self.MODEL_DIM % 2:
            raise UsageError(
                f"HEAD_DIM and MODEL_DIM must be even with STATIC_SGU (got {self.head_dim} and {self.MODEL_DIM})."
            )
        config.model_dim = self.MODEL_DIM // 2
        config.head_dim = self.head_dim // 2
        if self.ATTENTION_SCALE is None and self.PARAMETRIZATION != "standard":
            config.scale = 1 / config.head_dim
        return self.layer(StaticSguMixer, mixer=config, width=self.SGU_WIDTH, power=self.SGU_POWER)


class ParallelGptLm(GptLm):
    """GPT with parallel attention and feed-forward layer after a shared norm (Wang and Komatsuzaki 2021, GPT-J)."""

    RESIDUAL = "parallel_shared_norm"
