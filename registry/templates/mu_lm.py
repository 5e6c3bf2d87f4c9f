"""The family of Mu-Transformers: transformers under muP, split over the rows and columns of a mesh."""

from typing import Any, ClassVar

from layers.specs import P, Specs
from registry.templates.decoder import DecoderLm


class MuLm(DecoderLm):
    """The Mu-Transformer (Lingle 2024, An Empirical Study of muP Learning Rate Transfer, arXiv 2404.05728).

    RMS norms without gains, rotary positions, ReLU layers of four times the width, an untied head, no biases; heads of
    one size at every width, scores scaled by 1 / HEAD_DIM. Learning rates are those of width BASE_WIDTH: under muP they
    transfer to any other width. PARAMETRIZATION = "standard" reverts learning rates, head and score scale together.

    The layout is "2D finalized" of GSPMD (Xu et al. 2021, section 5.1): the mesh has rows "X" and columns "Y". With one
    column it is full sharding over X (ZeRO stage 3) except for embedding and head.
    """

    MESH_AXES = ("X", "Y")
    DEVICE_MESH_SHAPE = (-1, 1)
    LAYOUT = "mup_2d"

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
    NORM_SCALE = "none"
    BRANCH_INIT = "fan_in"

    # Optimization
    LEARNING_RATE = 2**-6  # at width BASE_WIDTH
    SCHEDULE = "linear"
    START_FACTOR = 1e-4
    FIRST_STEP = 0
    END_FACTOR = 1e-4
    WARMUP_STEPS = 10_000
    MOMENT_DTYPE = "bfloat16"
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

    smoke_table: ClassVar[dict[str, Any]] = {
        "MODEL_DIM": 64,
        "NUM_HEADS": None,
        "HEAD_DIM": 8,
        "FFN_DIM": None,
        "BASE_WIDTH": 32,
        "LEARNING_RATE": 2**-6,
        "DATA": "text",
        "DTYPE": "float32",
    }


class MuMultiQueryLm(MuLm):
    """Multi-query Mu-Transformer: keys and values replicated over columns, hidden layers of five times the width."""

    NUM_KV_HEADS = 1
    FFN_MULTIPLE = 5.0
    WEIGHTS = Specs(
        key_mkd=P("X", None, None),
        value_mkd=P("X", None, None),
        key_bias_kd=P(None, None),
        value_bias_kd=P(None, None),
    )
    ACTIVATIONS = Specs(key_bskd=P("X", None, None, None), value_bskd=P("X", None, None, None))
