"""The family of Lingvo's GShard language models: dense, with mixtures of experts, and bidirectional encoders."""

from typing import Any, ClassVar

from layers.specs import P, Specs
from registry.templates.decoder import DecoderLm


class GShardLm(DecoderLm):
    """Lingvo's dense LM (Xu et al. 2021, GSPMD).

    RMS norms, unscaled attention with an extra logit 0, a shared embedding of N(0, 1) with logits scaled by
    MODEL_DIM^-1/2, z-loss, and a loss that is a mean over all positions.

    Every matrix is split over both axes of the mesh; the batch over "data", and the model dimension of activations,
    heads, hidden units and vocabulary over "model". Positions are relative biases with gated GELU layers, or learned
    with ReLU layers. Synthetic packed rows are the training data: several segments per row, with positions that
    restart and a causal mask (the reference passes a mask of ones).

    The backward pass recomputes layers (REMAT = "full"): the reference sets it for repeated layers, and its stated
    speeds for other models imply it. Statistics of norms, scores and the loss are float32 (bfloat16 in the reference).
    A step is an update; the reference counts one step per micro-batch and one more per update.
    """

    LAYOUT = "gshard_2d"

    NUM_LAYERS = 32
    MODEL_DIM = 8192
    NUM_HEADS = 128
    HEAD_DIM = 128
    FFN_DIM = 65536
    VOCAB_SIZE = 32000
    SEQ_LEN = 1024
    FFN = "gated"
    FFN_INIT = "uniform"
    BRANCH_INIT = "fan_in"
    QUERY_INIT = "head_scaled"
    EMBEDDING_STDDEV = 1.0
    LOGITS_SCALE = "inverse_sqrt"
    POSITIONS = "relative"
    ATTENTION_SCALE = 1.0
    EXTRA_LOGIT = 0.0
    MERGED_HEADS = True
    ZERO_PADDING = True

    OPTIMIZER = "adafactor"
    LEARNING_RATE = 0.01
    SCHEDULE = "inverse_sqrt"
    TIMESCALE = 10_000
    WARMUP_STEPS = 0
    BETA2 = 0.999  # of adamw; adafactor has 1 - t^-0.8
    ADAM_EPSILON = 1e-6
    WEIGHT_DECAY = 0.0
    CLIP_NORM = None
    Z_LOSS = 1e-4
    LOSS_NORMALIZER = "positions"

    DATA = "synthetic"
    NUM_STEPS = 2_000_000
    LOG_EVERY = 100
    EVAL_EVERY = None
    SAVE_EVERY = 500
    DTYPE = "bfloat16"
    REMAT = "full"

    smoke_table: ClassVar[dict[str, Any]] = {
        "NUM_LAYERS": 4,
        "VOCAB_SIZE": 256,
        "LEARNING_RATE": 5e-2,
        "DTYPE": "float32",
    }


class MoeLm(GShardLm):
    """A GShard LM with a mixture of experts in place of every other feed-forward layer, the first included.

    Groups of tokens and experts are both split over "data": an all-to-all exchanges tokens. The hidden dimension of
    experts is split over "model"; weights outside the experts are small and replicated along "data".
    """

    LAYOUT = "gshard_experts"
    FFN = ("experts", "gated")
    EXPERT_ACTIVATION = "relu"

    smoke_table: ClassVar[dict[str, Any]] = {"EXPERT_DIM": 32}


class BertEncoder(GShardLm):
    """A bidirectional GShard encoder with gated SiLU layers and one head of keys and values.

    It is trained to predict masked tokens from their context; the loss is a mean over masked tokens.

    The reference reads MLPerf's Wikipedia records; here the input is synthetic, text with `--set=DATA=text`, or a seqio
    task, which may mask tokens itself (SEQIO_OBJECTIVE = "encoder").
    """

    OBJECTIVE = "masked"
    NUM_KV_HEADS = 1
    ACTIVATION = "silu"
    EXTRA_LOGIT = None
    SEQ_LEN = 512
    BATCH_SIZE = 1024
    LOSS_NORMALIZER = "weights"
    Z_LOSS = 0.0
    NUM_STEPS = 10_000_000
    LOG_EVERY = 200
    SAVE_EVERY = 1000

    WEIGHTS = Specs(embedding_vm=P("model", "data"), position_tm=P("model", "data"))
    ACTIVATIONS = Specs(key_bskd=P("data", None, None, None), value_bskd=P("data", None, None, None))

    # Masked tokens are few and harder to predict than next tokens: a small vocabulary and more rows show progress
    # early.
    smoke_table: ClassVar[dict[str, Any]] = {"VOCAB_SIZE": 64, "MASK_ID": 3, "BATCH_SIZE": 32}
