"""Transformer-VQ: the paper's data sets, two sizes on your own text, and their counterparts with quadratic attention.

The presets without a suffix have the weights of the tensor-parallel code and the dropout of the optimized one, and
back-propagate through full rows; those that end in Tbptt are the paper's runs (2048-token updates, carried state).
"""

from typing import Any, ClassVar

from registry.experiment import register
from registry.templates.vq_lm import VQLm, VQMultiHeadLm, VQMultiQueryLm


@register
class VQEnwik8(VQLm):
    """187.6 million weights on enwik8 bytes, rows of 8192."""

    NUM_LAYERS = 48
    MODEL_DIM = 768
    SEQ_LEN = 8192
    BATCH_SIZE = 32
    TIE_EMBEDDINGS = False
    FINAL_NORM = False
    DROPOUT = 0.5
    SINUSOID_DROPOUT = 0.2
    LAYER_DROPOUT = 0.3
    LEARNING_RATE = 4e-4
    WARMUP_STEPS = 10_000
    NUM_STEPS = 125_000
    CLIP_NORM = 0.1
    WEIGHT_DECAY = 2e-4
    DATA = "enwik8"
    LOG_EVERY = 100
    EVAL_ROWS = 3200
    EVAL_EVERY = 1000
    SAVE_EVERY = 1000


@register
class VQEnwik8Tbptt(VQEnwik8):
    """187.7 million weights: the paper's run on enwik8, 128 rows of 8192 bytes in updates of 2048."""

    BATCH_SIZE = 128
    TBPTT_LEN = 2048
    NORM_SCALE = "vector"
    BIASES = ("norm", "head")
    LOG_EVERY = 200
    EVAL_ROWS = 12_800


@register
class VQPg19(VQLm):
    """1.314 billion weights (a vocabulary of 32,000 included) on the books of PG-19, rows of 8192.

    Tokens are bytes, which use the first 259 rows, unless VOCABULARY_PATH names a trained vocabulary.
    """

    NUM_LAYERS = 48
    MODEL_DIM = 2048
    SEQ_LEN = 8192
    BATCH_SIZE = 32
    VOCAB_SIZE = 32_000
    LOGITS_SCALE = 0.005
    DROPOUT = 0.1
    SINUSOID_DROPOUT = 0.1
    LAYER_DROPOUT = 0.1
    OPTIMIZER = "adafactor"
    LEARNING_RATE = 0.01
    WARMUP_STEPS = 10_000
    NUM_STEPS = 500_000
    DATA = "pg19"
    LOSS_CHUNK = 512
    LOG_EVERY = 100
    EVAL_ROWS = 3200
    EVAL_EVERY = 1000
    SAVE_EVERY = 1000

    smoke_table: ClassVar[dict[str, Any]] = {"LEARNING_RATE": 2e-2}


@register
class VQPg19Tbptt(VQPg19):
    """1.315 billion weights: the paper's run on PG-19, 128 rows of 8192 tokens in updates of 2048."""

    BATCH_SIZE = 128
    TBPTT_LEN = 2048
    NORM_SCALE = "vector"
    BIASES = ("norm", "head")
    LOG_EVERY = 200
    EVAL_ROWS = 12_800


@register
class VQImageNet64(VQPg19):
    """1.249 billion weights on the pixels of 64 x 64 images, a row of 12,288 tokens an image."""

    SEQ_LEN = 12_288
    BATCH_SIZE = 16
    VOCAB_SIZE = 259
    DROPOUT = 0.0
    LAYER_DROPOUT = 0.0
    DATA = "imagenet64"
    EVAL_ROWS = 1600


@register
class VQImageNet64Tbptt(VQImageNet64):
    """1.250 billion weights: the paper's run on ImageNet64, 128 images in updates of 1536 tokens."""

    BATCH_SIZE = 128
    TBPTT_LEN = 1536
    NORM_SCALE = "vector"
    BIASES = ("norm", "head")
    POSITIONS = "scaled_sinusoidal"
    LOG_EVERY = 200
    EVAL_ROWS = 12_800


@register
class VQThroughput(VQEnwik8):
    """187.6 million weights for measuring speed: 20 steps of 8 rows; set SEQ_LEN to 2048, 8192, 32768, 131072."""

    BATCH_SIZE = 8
    DROPOUT = 0.0
    SINUSOID_DROPOUT = 0.1
    LAYER_DROPOUT = 0.0
    WEIGHT_DECAY = 0.0
    WARMUP_STEPS = 10
    NUM_STEPS = 20
    LOG_EVERY = 5
    EVAL_ROWS = 80
    EVAL_EVERY = None
    SAVE_EVERY = 100


@register
class FullThroughput(VQThroughput):
    """VQThroughput with quadratic attention: 184.4 million weights."""

    MIXER = "distance"


@register
class VQThroughputMha(VQMultiHeadLm, VQThroughput):
    """VQThroughput with multi-head attention and feed-forward layers: 194.0 million weights."""

    NUM_LAYERS = 24


@register
class VQThroughputMqa(VQMultiQueryLm, VQThroughput):
    """VQThroughput with multi-query attention and feed-forward layers: 179.0 million weights."""

    NUM_LAYERS = 24


@register
class VQTiny(VQEnwik8):
    """15.8 million weights on enwik8, rows of 800 in blocks of 50: a quick check that it runs."""

    NUM_LAYERS = 4
    SEQ_LEN = 800
    BATCH_SIZE = 8
    BLOCK_LEN = 50
    NUM_CODES = 50
    WARMUP_STEPS = 80
    NUM_STEPS = 1000
    LOG_EVERY = 10
    EVAL_ROWS = 80
    EVAL_EVERY = 100
    SAVE_EVERY = 100


@register
class VQSmall(VQEnwik8):
    """187.6 million weights, the size of the enwik8 model, on any text: the standard library's source by default."""

    DATA = "text"
    NUM_STEPS = 20_000
    WARMUP_STEPS = 1000


@register
class FullSmall(VQSmall):
    """VQSmall with quadratic attention: 184.4 million weights."""

    MIXER = "distance"


@register
class VQLarge(VQPg19):
    """1.314 billion weights, the size of the PG-19 model, on any text: 16 rows side by side, values in 4 parts."""

    DEVICE_MESH_SHAPE = (16, 1, 4)
    DATA = "text"


@register
class FullLarge(VQLarge):
    """VQLarge with quadratic attention: 1.311 billion weights."""

    MIXER = "distance"


@register
class VQLarge131k(VQLarge):
    """1.314 billion weights: VQLarge at 131,072 tokens a row, 8 rows side by side, each in 8 parts along it."""

    DEVICE_MESH_SHAPE = (8, 8, 1)
    SEQ_LEN = 131_072
    BATCH_SIZE = 8
    EVAL_ROWS = 64


@register
class VQStdlib(VQLm):
    """574,208 weights on the standard library's source, rows of 1024 bytes: VQ learning on a laptop."""

    NUM_LAYERS = 4
    MODEL_DIM = 128
    HEAD_DIM = 64
    SEQ_LEN = 1024
    BATCH_SIZE = 2
    BLOCK_LEN = 64
    NUM_CODES = 64
    TIE_EMBEDDINGS = False
    VOCAB_SIZE = 256
    LEARNING_RATE = 3e-3
    CLIP_NORM = 1.0
    NUM_STEPS = 1000
    EVAL_ROWS = 64
    DTYPE = "float32"
    REMAT = "none"


@register
class FullStdlib(VQStdlib):
    """VQStdlib with quadratic attention: 557,568 weights."""

    MIXER = "distance"
