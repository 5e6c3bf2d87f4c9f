"""The MLPerf BERT encoders of Lingvo under their names; the docstrings give the number of weights."""

from typing import Any, ClassVar

from registry.experiment import register
from registry.templates.gshard_lm import BertEncoder


@register
class MLPerfTrainBertDense2B(BertEncoder):
    """2.02 billion weights on 64 devices, 16 heads of 256, relative positions."""

    DEVICE_MESH_SHAPE = (16, 4)
    DEVICE_ORDER = "row_major"
    NUM_LAYERS = 8
    MODEL_DIM = 4096
    FFN_DIM = 16384
    NUM_HEADS = 16
    HEAD_DIM = 256
    VOCAB_SIZE = 30522
    PAD_VOCAB_TO = 4

    smoke_table: ClassVar[dict[str, Any]] = {"VOCAB_SIZE": 59, "PAD_VOCAB_TO": 8}


@register
class MLPerfBertDense1T(BertEncoder):
    """963 billion weights on 1024 devices, relative positions."""

    DEVICE_MESH_SHAPE = (64, 16)
    DEVICE_ORDER = "row_major"
    NUM_LAYERS = 128
    MODEL_DIM = 16384
    FFN_DIM = 131072
    NUM_HEADS = 256


@register
class MLPerfBertDense1TWider(MLPerfBertDense1T):
    """895 billion weights on 1024 devices: a quarter of the layers, twice as wide."""

    NUM_LAYERS = 32
    MODEL_DIM = 32768
    FFN_DIM = 262144
    BATCH_SIZE = 4096


@register
class MLPerfBertDense175B(MLPerfBertDense1T):
    """204 billion weights on 1024 devices, learned positions."""

    NUM_LAYERS = 96
    MODEL_DIM = 12288
    FFN_DIM = 49152
    NUM_HEADS = 96
    POSITIONS = "learned"
    LOG_EVERY = 20


@register
class MLPerfBertDense500B(MLPerfBertDense1T):
    """482 billion weights on 1024 devices, learned positions, label smoothing."""

    NUM_LAYERS = 64
    POSITIONS = "learned"
    BATCH_SIZE = 4096
    VOCAB_SIZE = 30522
    PAD_VOCAB_TO = 16
    LABEL_SMOOTHING = 0.1
    LOG_EVERY = 100

    smoke_table: ClassVar[dict[str, Any]] = {"VOCAB_SIZE": 59, "PAD_VOCAB_TO": 8}


@register
class MLPerfBertDense500B2K(MLPerfBertDense500B):
    """482 billion weights on 2048 devices: the run that reached 63% of a TPU v4's peak."""

    DEVICE_MESH_SHAPE = (256, 8)
    DEVICE_ORDER = "transposed"
    PAD_VOCAB_TO = 8


@register
class MLPerfBertDense13B32x32(BertEncoder):
    """14.9 billion weights on 2048 devices. Its 40 heads are padded to 64 to divide by 32 devices."""

    DEVICE_MESH_SHAPE = (64, 32)
    DEVICE_ORDER = "transposed"
    NUM_LAYERS = 40
    MODEL_DIM = 5120
    FFN_DIM = 20480
    NUM_HEADS = 40
    PADDED_HEADS = 64
    POSITIONS = "learned"
    BATCH_SIZE = 4096
    LABEL_SMOOTHING = 0.1
    LOG_EVERY = 100

    smoke_table: ClassVar[dict[str, Any]] = {"NUM_HEADS": 6, "PADDED_HEADS": 8}
