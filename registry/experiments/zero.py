"""fattorib's ZeRO-transformer on 32 cores of a TPU v3: its presets and the 1.1B run, at every stage.

The reference splits the optimizer alone (stage 1). `--set=ZERO_STAGE=0` is data parallelism without ZeRO.
"""

from registry.experiment import register
from registry.templates.gpt_lm import GptLm


class ZeroLm(GptLm):
    """Weights replicated over the data axis unless a ZeRO stage splits them; no biases; ALiBi."""

    DEVICE_MESH_SHAPE = (32, 1)
    LAYOUT = "tensor_parallel"
    BIASES = ()
    ZERO_STAGE = 1
    LEARNING_RATE = 3e-4
    DECAY_STEPS = 143_000
    NUM_STEPS = 163_000
    EVAL_EVERY = 1000
    SAVE_EVERY = 1000


class ZeroTest(ZeroLm):
    """The reference's model for its own tests, at a context of 32."""

    NUM_LAYERS = 2
    MODEL_DIM = 64
    NUM_HEADS = 4
    VOCAB_SIZE = 256
    SEQ_LEN = 32


class Zero417M(ZeroLm):
    """417.0 million weights, updates of two million tokens."""

    MODEL_DIM = 1536
    SEQ_LEN = 2048
    BATCH_SIZE = 1024
    GRADIENT_ACCUMULATION = 4


class Zero760M(ZeroLm):
    """756.8 million weights, updates of two million tokens."""

    NUM_LAYERS = 24
    MODEL_DIM = 1536
    NUM_HEADS = 16
    BATCH_SIZE = 2048
    GRADIENT_ACCUMULATION = 4


class Zero1B3(ZeroLm):
    """1.311 billion weights, updates of half a million tokens."""

    NUM_LAYERS = 24
    MODEL_DIM = 2048
    NUM_HEADS = 16
    BATCH_SIZE = 512
    GRADIENT_ACCUMULATION = 2
    LEARNING_RATE = 2e-4
    NUM_STEPS = 381_000


class Zero1B1(ZeroLm):
    """1.097 billion weights, biases among them, on rows of 512: the run that outgrew plain data parallelism."""

    NUM_LAYERS = 36
    MODEL_DIM = 1536
    BIASES = GptLm.BIASES
    SEQ_LEN = 512
    BATCH_SIZE = 1024
    GRADIENT_ACCUMULATION = 32
    LEARNING_RATE = 2e-4
    DECAY_STEPS = 85_000
    NUM_STEPS = 90_000
    REMAT = "full"


@register
class ZeroTestStage1(ZeroTest):
    """115 thousand weights, the reference's own tests: the optimizer split over 32 devices."""


@register
class ZeroTestStage2(ZeroTest):
    """115 thousand weights: optimizer and gradients split over 32 devices."""

    ZERO_STAGE = 2


@register
class ZeroTestStage3(ZeroTest):
    """115 thousand weights: optimizer, gradients and weights split over 32 devices."""

    ZERO_STAGE = 3


@register
class Zero417MStage1(Zero417M):
    """417.0 million weights on 32 cores, the optimizer split."""


@register
class Zero417MStage2(Zero417M):
    """417.0 million weights on 32 cores, optimizer and gradients split."""

    ZERO_STAGE = 2


@register
class Zero417MStage3(Zero417M):
    """417.0 million weights on 32 cores, optimizer, gradients and weights split."""

    ZERO_STAGE = 3


@register
class Zero760MStage1(Zero760M):
    """756.8 million weights on 32 cores, the optimizer split."""


@register
class Zero760MStage2(Zero760M):
    """756.8 million weights on 32 cores, optimizer and gradients split."""

    ZERO_STAGE = 2


@register
class Zero760MStage3(Zero760M):
    """756.8 million weights on 32 cores, optimizer, gradients and weights split."""

    ZERO_STAGE = 3


@register
class Zero1B1Stage1(Zero1B1):
    """1.097 billion weights on 32 cores, the optimizer split."""


@register
class Zero1B1Stage2(Zero1B1):
    """1.097 billion weights on 32 cores, optimizer and gradients split."""

    ZERO_STAGE = 2


@register
class Zero1B1Stage3(Zero1B1):
    """1.097 billion weights on 32 cores, optimizer, gradients and weights split."""

    ZERO_STAGE = 3


@register
class Zero1B3Stage1(Zero1B3):
    """1.311 billion weights on 32 cores, the optimizer split."""


@register
class Zero1B3Stage2(Zero1B3):
    """1.311 billion weights on 32 cores, optimizer and gradients split."""

    ZERO_STAGE = 2


@register
class Zero1B3Stage3(Zero1B3):
    """1.311 billion weights on 32 cores, optimizer, gradients and weights split."""

    ZERO_STAGE = 3
