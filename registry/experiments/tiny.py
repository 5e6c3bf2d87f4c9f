"""Small models that learn real text on a laptop."""

from registry.experiment import register
from registry.experiments.decoder import DecoderLm


@register
class StdlibTiny(DecoderLm):
    """The demo: a byte-level transformer on the source of Python's standard library, about three minutes on two CPU cores."""


@register
class StdlibSmall(StdlibTiny):
    """StdlibTiny made wider and deeper, for an hour on two CPU cores."""

    NUM_LAYERS = 6
    MODEL_DIM = 384
    NUM_HEADS = 6
    SEQ_LEN = 256
    LEARNING_RATE = 1e-3
    NUM_STEPS = 2000


@register
class StdlibTinyLlama(StdlibTiny):
    """How to write your own: StdlibTiny with a gated SiLU layer and grouped-query attention, in four lines."""

    ACTIVATION = "silu"
    GATED = True
    FFN_DIM = 352  # 8/3 of the width, rounded up to a multiple of 32: as many weights as the plain layer
    NUM_KV_HEADS = 2


@register
class CharTiny(DecoderLm):
    """nanoGPT's CPU character model: 4 layers, 4 heads, 128 wide, context 64, batch 12, 2000 steps, on a text file."""

    SEQ_LEN = 64
    BATCH_SIZE = 12
    NUM_STEPS = 2000
    SPLIT_FRACTIONS = (0.9, 0.1, 0.0)
