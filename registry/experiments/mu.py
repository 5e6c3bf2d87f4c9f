"""Mu-Transformers under their widths, a small one to tune on a laptop, and other families under muP.

Weights are counted with the vocabulary of T5 (32,100 tokens), which the runs on C4 use. By default tokens are bytes of
text, which use the first 256 rows; VOCABULARY and DATA select others.
"""

from typing import Any, ClassVar

from registry.experiment import register
from registry.experiments.gshard import DenseLm8B2x2
from registry.experiments.tiny import StdlibTiny
from registry.experiments.vq import VQStdlib
from registry.templates.mu_lm import MuLm, MuMultiQueryLm


@register
class MuTiny(MuLm):
    """Two layers, 64 wide: the proxy to tune on a laptop; seconds a run."""

    NUM_LAYERS = 2
    MODEL_DIM = 64
    BASE_WIDTH = 64
    HEAD_DIM = 32
    SEQ_LEN = 64
    BATCH_SIZE = 8
    WARMUP_STEPS = 20
    NUM_STEPS = 200
    LOG_EVERY = 10
    EVAL_ROWS = 256
    EVAL_EVERY = None
    SAVE_EVERY = 200
    MOMENT_DTYPE = "float32"
    DTYPE = "float32"
    REMAT = "none"
    UNROLL = 2


class MuT5(MuLm):
    """Runs on 128 TPU v3 cores: 24 layers, 2^18 tokens an update, 33 billion in all."""

    DEVICE_MESH_SHAPE = (128, 1)
    VOCAB_SIZE = 32_100


@register
class MuSmall(MuT5):
    """12.9 million weights, 128 wide: the width that learning rates are tuned at."""

    MODEL_DIM = 128


@register
class Mu256(MuT5):
    """35.3 million weights, 256 wide."""

    MODEL_DIM = 256


@register
class MuMedium(MuT5):
    """108 million weights, 512 wide."""

    MODEL_DIM = 512


@register
class Mu1024(MuT5):
    """368 million weights, 1024 wide."""

    MODEL_DIM = 1024


@register
class MuLarge(MuT5):
    """1.34 billion weights, 2048 wide."""

    DEVICE_MESH_SHAPE = (32, 4)
    MODEL_DIM = 2048


@register
class Mu4096(MuT5):
    """5.09 billion weights, 4096 wide."""

    DEVICE_MESH_SHAPE = (32, 4)
    MODEL_DIM = 4096


@register
class MuHuge(MuT5):
    """19.9 billion weights, 8192 wide, on 256 TPU v3 cores."""

    DEVICE_MESH_SHAPE = (64, 4)
    MODEL_DIM = 8192


@register
class MuHuge12(MuHuge):
    """10.2 billion weights in 12 layers, 8192 wide: the largest run, Lion on 190 billion tokens.

    Squared ReLU, zero queries at the start, rates 1 / fan_in, decay by the schedule alone. LEARNING_RATE is a
    starting point for a sweep: the best one for Lion is not that of AdamW.
    """

    PARAMETRIZATION = "abs_mup"
    NUM_LAYERS = 12
    QUERY_INIT = "zero"
    ACTIVATION = "squared_relu"
    OPTIMIZER = "lion"
    BETA1 = 0.95
    BETA2 = 0.98
    WEIGHT_DECAY = 1e-4
    DECAY_SCALE = "schedule"
    BATCH_SIZE = 8192
    WARMUP_STEPS = 7_000
    NUM_STEPS = 90_000
    EVAL_EVERY = 500
    SAVE_EVERY = 500

    smoke_table: ClassVar[dict[str, Any]] = {"LEARNING_RATE": 2**-3}


@register
class MuMultiQuery(MuMultiQueryLm):
    """111.5 million weights, 512 wide: MuMedium with one head of keys and values and wider hidden layers."""

    DEVICE_MESH_SHAPE = (128, 1)
    VOCAB_SIZE = 32_100
    MODEL_DIM = 512


@register
class MuDense8B(DenseLm8B2x2):
    """8.85 billion weights: gshard.DenseLm8B2x2 with learning rates and logits that follow its width under muP."""

    PARAMETRIZATION = "mup"
    BASE_WIDTH = 512


@register
class MuStdlib(StdlibTiny):
    """The demo under muP: its learning rate transfers to any width, `--set=MODEL_DIM=256`."""

    PARAMETRIZATION = "mup"
    BASE_WIDTH = 64
    NUM_HEADS = None
    HEAD_DIM = 32


@register
class MuVQStdlib(VQStdlib):
    """Transformer-VQ on the standard library under muP."""

    PARAMETRIZATION = "mup"
    BASE_WIDTH = 64

    smoke_table: ClassVar[dict[str, Any]] = {"HEAD_DIM": 32}  # means over 8 coordinates would differ between widths
