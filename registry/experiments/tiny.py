"""Small models that learn real text on a laptop."""

from registry.experiment import register
from registry.phase import Phase
from registry.templates.decoder import DecoderLm


@register
class StdlibTiny(DecoderLm):
    """The demo: a byte-level transformer on Python's standard library, about three minutes on two CPU cores."""

    ACTIVATION = "squared_relu"
    TIE_EMBEDDINGS = False
    SEQ_LEN = 256
    BATCH_SIZE = 4
    LEARNING_RATE = 3e-3
    NUM_STEPS = 1200
    EVAL_ROWS = 256
    EVAL_EVERY = 200
    SAVE_EVERY = 200
    UNROLL = 4


@register
class StdlibSmall(StdlibTiny):
    """StdlibTiny with 13 times the weights and four times the context, for a GPU or a patient laptop."""

    NUM_LAYERS = 6
    MODEL_DIM = 384
    NUM_HEADS = 6
    SEQ_LEN = 1024
    BATCH_SIZE = 16
    LEARNING_RATE = 1e-3
    NUM_STEPS = 4000
    DROPOUT = 0.1
    UNROLL = 6


@register
class StdlibTinyLlama(StdlibTiny):
    """Example of your own experiment: StdlibTiny with a gated SiLU layer and grouped-query attention, in four lines."""

    ACTIVATION = "silu"
    FFN = "gated"
    FFN_DIM = 352  # 8/3 of the width, rounded up to a multiple of 32: as many weights as the plain layer
    NUM_KV_HEADS = 2


@register
class StdlibTinyPhases(StdlibTiny):
    """StdlibTiny at a constant learning rate, which falls to zero in the last 200 updates, on rows twice as long."""

    SCHEDULE = "constant"
    PHASES = (Phase(), Phase(steps=200, schedule="sqrt", end_factor=0, SEQ_LEN=512, BATCH_SIZE=2, ROTARY_BASE=40_000.0))


@register
class CharTiny(DecoderLm):
    """nanoGPT's CPU character model: 4 layers, 4 heads, 128 wide, context 64, batch 12, 2000 steps, on a text file.

    The sizes are nanoGPT's; positions are rotary and norms RMS, as everywhere in this family.
    """

    LEARNING_RATE = 2e-3
    SEQ_LEN = 64
    BATCH_SIZE = 12
    NUM_STEPS = 2000
    SPLIT_FRACTIONS = (0.9, 0.1, 0.0)
    EVAL_ROWS = 240  # 20 batches, nanoGPT's eval_iters
    UNROLL = 4
