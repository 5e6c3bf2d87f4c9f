"""The template of Mu-Transformers: transformers under muP, split over the rows and columns of a mesh."""

from typing import Literal

import fiddle as fdl

from layers.errors import UsageError
from layers.specs import P, Specs
from layers.weights.initializers import Constant
from registry.templates.decoder import DecoderLm


class MuLm(DecoderLm):
    """The Mu-Transformer (Lingle 2024, An Empirical Study of muP Learning Rate Transfer, arXiv 2404.05728).

    RMS norms without gains, rotary positions, ReLU layers of four times the width, an untied head, no biases; heads of
    one size at every width, scores scaled by 1 / HEAD_DIM. Learning rates are those of width BASE_WIDTH: under muP they
    transfer to any other width. PARAMETRIZATION = "standard" reverts learning rates, head and score scale together.

    The split is "2D finalized" of GSPMD (Xu et al. 2021, section 5.1): the mesh has rows "X" and columns "Y". Every
    matrix of a block is split over both; the batch over X, and heads, hidden units and the residual stream over Y.
    Embedding and head are split over Y alone. With one column this is full sharding over X (ZeRO stage 3) except for
    embedding and head.
    """

    MESH_AXES = ("X", "Y")
    DEVICE_MESH_SHAPE = (-1, 1)

    # Model
    PARAMETRIZATION = "mup"
    BASE_WIDTH = 128
    NUM_LAYERS = 24
    MODEL_DIM = 1024
    NUM_HEADS = None
    HEAD_DIM = 128
    ACTIVATION = "relu"
    TIE_EMBEDDINGS = False
    NORM_EPSILON = 1e-5
    NORM_SCALE: Literal["none", "vector", "scalar"] = "none"  # learned gains of norms
    SCORE_FUNCTION: str = "softmax"  # attention weights: a name in layers.attention.score_functions
    QUERY_INIT: Literal["fan_in", "zero"] = "fan_in"  # initializer of queries
    RESIDUAL_INIT: Literal["fan_in", "zero"] = "fan_in"  # of the output matrices of residual branches

    # Optimization
    LEARNING_RATE = 2**-6  # at width BASE_WIDTH
    SCHEDULE = "linear"
    START_FACTOR: float = 1e-4  # learning rate at the start of warm-up over the peak
    END_FACTOR = 1e-4
    WARMUP_STEPS = 10_000
    MOMENT_DTYPE = "bfloat16"
    SCALE_EPSILON: bool = False  # scale Adam's epsilon by width like the learning rate
    WEIGHT_DECAY = 0.0
    DECAY_ROLES = ("embedding", "hidden", "output", "scale", "bias")
    LOSS_NORMALIZER = "positions"

    # Data
    SEQ_LEN = 256
    BATCH_SIZE = 1024
    NUM_STEPS = 125_000
    LOG_EVERY = 100
    EVAL_EVERY = 5000
    EVAL_ROWS = None
    SAVE_EVERY = 5000
    DTYPE = "bfloat16"
    REMAT = "full"

    # Placement
    WEIGHTS: Specs = Specs(
        embedding_vm=P(None, "Y"),
        query_mnd=P("X", "Y", None),
        key_mkd=P("X", "Y", None),
        value_mkd=P("X", "Y", None),
        attention_out_ndm=P("Y", None, "X"),
        ffn_in_mf=P("X", "Y"),
        ffn_out_fm=P("Y", "X"),
    )
    OPTIONAL_WEIGHTS: Specs = Specs(
        unembedding_mv=P("Y", None),
        ffn_gate_mf=P("X", "Y"),
        position_tm=P(None, "Y"),
        query_bias_nd=P("Y", None),
        key_bias_kd=P("Y", None),
        value_bias_kd=P("Y", None),
        attention_out_bias_m=P("Y"),
        ffn_in_bias_f=P("Y"),
        ffn_gate_bias_f=P("Y"),
        ffn_out_bias_m=P("Y"),
        unembedding_bias_v=P(None),
        norm_scale_m=P("Y"),
        norm_scale_=P(),
        norm_bias_m=P("Y"),
        query_scale_d=P(None),
        key_scale_d=P(None),
        attention_gain_n=P("Y"),
    )
    ACTIVATIONS: Specs = Specs(
        tokens_bs=P("X", None),
        residual_bsm=P("X", None, "Y"),
        query_bsnd=P("X", None, "Y", None),
        key_bskd=P("X", None, "Y", None),
        value_bskd=P("X", None, "Y", None),
        mixed_bsnd=P("X", None, "Y", None),
        hidden_bsf=P("X", None, "Y"),
        logits_bsv=P("X", None, None),
    )

    @classmethod
    def Smoke(cls):
        few = 1 if cls.NUM_KV_HEADS == 1 else None
        sizes = {"NUM_HEADS": None, "HEAD_DIM": 8, "MODEL_DIM": 64, "FFN_DIM": None, "NUM_KV_HEADS": few}
        relative = {"WEIGHT_DECAY": min(cls.WEIGHT_DECAY, 0.01), "DTYPE": "float32", "DATA": "text"}
        rate = 2**-6 if cls.PARAMETRIZATION != "abs_mup" else 2**-3
        return super().Smoke().derive(BASE_WIDTH=32, LEARNING_RATE=rate, **sizes, **relative)

    def model(self) -> fdl.Config:
        config = super().model()
        (config.embedding if self.TIE_EMBEDDINGS else config.head).use_bias = self.USE_BIAS
        return config

    @property
    def branch_scale(self) -> float:
        return 1.0

    def norm(self) -> fdl.Config:
        config = super().norm()
        config.use_scale = self.NORM_SCALE != "none"
        if self.NORM == "rms":
            config.scalar_scale = self.NORM_SCALE == "scalar"
        elif self.NORM_SCALE == "scalar":
            raise UsageError("NORM_SCALE = scalar needs NORM = rms, because layer norms have gains per channel.")
        return config

    def mixer(self) -> fdl.Config:
        config = super().mixer()
        config.qk_scale = self.QK_NORM == "rms" and self.NORM_SCALE != "none"  # "scalar" is treated as "vector" here
        if self.NORM_EPSILON is not None:
            config.epsilon = self.NORM_EPSILON
        config.score_function = self.SCORE_FUNCTION
        config.score_length = self.SEQ_LEN
        if self.QUERY_INIT == "zero":
            config.query_initializer = fdl.Config(Constant)
        if self.RESIDUAL_INIT == "zero":
            config.out_initializer = fdl.Config(Constant)
        return config

    def ffn(self) -> fdl.Config:
        config = super().ffn()
        if self.RESIDUAL_INIT == "zero":
            config.out_initializer = fdl.Config(Constant)
        return config

    def optimizer(self) -> fdl.Config:
        config = super().optimizer()
        config.schedule.first_step = 0
        config.schedule.start_factor = self.START_FACTOR
        config.scale_epsilon = self.SCALE_EPSILON
        return config


class MuMultiQueryLm(MuLm):
    """Multi-query Mu-Transformer: keys and values replicated over columns, hidden layers of five times the width."""

    NUM_KV_HEADS = 1
    FFN_MULTIPLE = 5.0
    WEIGHTS: Specs = MuLm.WEIGHTS | Specs(key_mkd=P("X", None, None), value_mkd=P("X", None, None))
    OPTIONAL_WEIGHTS: Specs = MuLm.OPTIONAL_WEIGHTS | Specs(key_bias_kd=P(None, None), value_bias_kd=P(None, None))
    ACTIVATIONS: Specs = MuLm.ACTIVATIONS | Specs(
        key_bskd=P("X", None, None, None), value_bskd=P("X", None, None, None)
    )
