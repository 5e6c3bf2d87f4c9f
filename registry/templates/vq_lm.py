"""The family of Transformer-VQ language models and their counterparts with quadratic attention."""

from typing import Any, ClassVar

from layers.specs import P, Specs
from registry.templates.decoder import DecoderLm, IfOn


class VQLm(DecoderLm):
    """Transformer-VQ (Lingle 2023): linear-time attention over quantized keys, exact over the complete past.

    Layers are gated attention units of one head, without feed-forward layers ("shga" in the paper's code).
    MIXER = "distance" is the counterpart with quadratic attention: the same weights without codebooks, unquantized
    keys, relative positions at every distance.

    The mesh has three axes: rows are split over "data", positions over "sequence" (blocks of one row on different
    devices, with merged caches), values, gates and hidden units over "model". Matrices and the optimizer's slots are
    split over both "data" and "model". DROPOUT applies to the outputs of residual branches.
    """

    MESH_AXES = ("data", "sequence", "model")
    DEVICE_MESH_SHAPE = (-1, 1, 1)
    LAYOUT = "vq_values"

    # Model
    MIXER = "vq"
    MIXER_GATE = True
    FFN = ("none", "none")
    NUM_HEADS = 1
    HEAD_DIM = 128
    VOCAB_SIZE = 259
    SPECIAL_BYTES = True
    ACTIVATION = "squared_relu"
    POSITIONS = "distance"
    NORM_SCALE = "none"
    EMBEDDING_STDDEV = 1.0
    EMBEDDING_DROPOUT = 0.0
    HIDDEN_DROPOUT = 0.0

    # Optimization
    BRANCH_INIT = "fan_in"
    BETA2 = 0.98
    ADAM_EPSILON = 1e-9
    WEIGHT_DECAY = 0.0
    DECAY_SCALE = "none"  # the paper's decay does not depend on the learning rate
    CLIP_NORM = None
    LOSS_NORMALIZER = "positions"

    DTYPE = "bfloat16"
    REMAT = "full"

    smoke_table: ClassVar[dict[str, Any]] = {
        "NUM_HEADS": 1,
        "HEAD_DIM": 8,
        "VALUE_DIM": None,
        "VOCAB_SIZE": 264,
        "DATA": "text",
        "TBPTT_LEN": IfOn(16),
        "DROPOUT": IfOn(0.01),
        "EMBEDDING_DROPOUT": IfOn(0.01),
        "SINUSOID_DROPOUT": IfOn(0.01),
        "LAYER_DROPOUT": IfOn(0.01),
        "LEARNING_RATE": 5e-3,
        "DTYPE": "float32",
    }


class VQMultiHeadLm(VQLm):
    """Multi-head attention with a feed-forward layer: queries, keys, values, scores split over "model" by heads."""

    LAYOUT = "vq_heads"
    MIXER_GATE = False
    FFN = "dense"
    NUM_HEADS = None

    smoke_table: ClassVar[dict[str, Any]] = {"NUM_HEADS": None, "HEAD_DIM": 4, "FFN_DIM": 64}


class VQMultiQueryLm(VQMultiHeadLm):
    """Multi-query attention with a feed-forward layer: only queries and scores are split over "model"."""

    NUM_KV_HEADS = 1
    FFN_MULTIPLE = 5.0  # about as many weights as two gated units
    WEIGHTS = Specs(
        key_mkd=P("data", None, None),
        value_mkf=P("data", None, None),
        distance_mkd=P("data", None, None),
        codebook_sum_kcd=P(None, None, None),
        codebook_count_kc=P(None, None),
    )
    ACTIVATIONS = Specs(
        key_bskd=P("data", "sequence", None, None),
        value_bskf=P("data", "sequence", None, None),
        scores_brkglt=P("data", "sequence", None, "model", None, None),
        cache_brkcf=P("data", "sequence", None, None, None),
    )
