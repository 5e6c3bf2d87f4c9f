"""Lingvo's GShard language models under their names, and mixtures of experts up to the paper's scale.

The number in a dense name is the reference's and rarely the number of weights, which the docstrings give.
"""

from typing import Any, ClassVar

from layers.specs import P, Specs
from registry.experiment import register
from registry.templates.gshard_lm import GShardLm, MoeLm


@register
class DenseLm8B2x2(GShardLm):
    """8.85 billion weights on 8 TPU v3 cores, split in one dimension.

    The reference derives its batch from 128 devices although its mesh has 8; here the batch of 16 is kept, and a mesh
    is all available devices.
    """

    DEVICE_MESH_SHAPE = (1, 8)
    NUM_LAYERS = 4
    BATCH_SIZE = 16


@register
class DenseLm8B2x2Decode(DenseLm8B2x2):
    """DenseLm8B2x2 for decoding: the same weights and numbers (the reference switches a position shortcut off)."""


@register
class DenseLm128B8x8(GShardLm):
    """137.7 billion weights on 128 TPU v3 cores, split in two dimensions."""

    DEVICE_MESH_SHAPE = (8, 16)
    DEVICE_ORDER = "ring"
    NUM_LAYERS = 64
    BATCH_SIZE = 16


@register
class DenseLm128B16x16(DenseLm128B8x8):
    """137.7 billion weights on 512 TPU v3 cores."""

    DEVICE_MESH_SHAPE = (16, 32)
    BATCH_SIZE = 128


@register
class DenseLm128B32x32(DenseLm128B8x8):
    """137.7 billion weights on 2048 TPU v3 cores."""

    DEVICE_MESH_SHAPE = (32, 64)
    DEVICE_ORDER = "row_major"
    BATCH_SIZE = 512
    LOG_EVERY = 20


class DenseLm12kWide(GShardLm):
    """12288 wide with ReLU layers and learned positions: GPT-3's sizes (Brown et al. 2020, table 2.1)."""

    NUM_LAYERS = 96
    MODEL_DIM = 12288
    FFN_DIM = 49152
    NUM_HEADS = 96
    SEQ_LEN = 2048
    FFN = "dense"
    ACTIVATION = "relu"
    POSITIONS = "learned"


@register
class DenseLm175B32x32(DenseLm12kWide):
    """174.4 billion weights on 2048 TPU v3 cores, attention scores capped at 50."""

    DEVICE_MESH_SHAPE = (64, 32)
    DEVICE_ORDER = "transposed"
    BATCH_SIZE = 1024
    ATTENTION_SOFTCAP = 50.0


@register
class DenseLm175B32x32DP(DenseLm175B32x32):
    """One of two replicas of DenseLm175B32x32: 174.4 billion weights on 1024 TPU v3 cores.

    The reference's input ignores the number of replicas, which halves the batch that its comments imply; here the batch
    of a replica is the stated 512 rows.
    """

    DEVICE_MESH_SHAPE = (64, 16)
    DEVICE_ORDER = "ring_transposed"
    BATCH_SIZE = 512
    LOG_EVERY = 20


@register
class DenseLm175B1K(DenseLm175B32x32):
    """174.4 billion weights on 1024 TPU v3 cores.

    The reference derives its batch from 2048 devices although its mesh has 1024; the batch of 1024 rows is kept.
    """

    DEVICE_MESH_SHAPE = (64, 16)
    DEVICE_ORDER = "row_major"


@register
class DenseLM13B32x32(DenseLm175B32x32):
    """12.8 billion weights on 2048 TPU v3 cores. Its 40 heads are padded to 64 to divide by 32 devices."""

    NUM_LAYERS = 40
    MODEL_DIM = 5120
    FFN_DIM = 20480
    NUM_HEADS = 40
    PADDED_HEADS = 64

    smoke_table: ClassVar[dict[str, Any]] = {"NUM_HEADS": 6, "PADDED_HEADS": 8}


@register
class DenseLm175B8x8Decode2D(DenseLm175B32x32):
    """DenseLm175B32x32 for decoding on 128 TPU v3 cores: few rows, so activations are split by model dimension."""

    DEVICE_MESH_SHAPE = (8, 16)
    DEVICE_ORDER = "ring"
    BATCH_SIZE = 16
    WEIGHTS = Specs(embedding_vm=P("model", "data"), position_tm=P("model", "data"))
    ACTIVATIONS = Specs(
        tokens_bs=P(None, None),
        residual_bsm=P(None, None, "data"),
        hidden_bsf=P(None, None, "model"),
        logits_bsv=P(None, None, "model"),
    )


@register
class DenseLm1T16x16(GShardLm):
    """1.1 trillion weights on 512 TPU v3 cores.

    The weights alone take half of each core's memory, so gradients are kept in bfloat16.
    """

    DEVICE_MESH_SHAPE = (16, 32)
    DEVICE_ORDER = "ring"
    NUM_LAYERS = 128
    MODEL_DIM = 16384
    FFN_DIM = 131072
    NUM_HEADS = 256
    SEQ_LEN = 512
    BATCH_SIZE = 16
    GRADIENT_DTYPE = "bfloat16"


class DenseLm12kWideAdam(DenseLm12kWide):
    """12288 wide, trained with Adam.

    The reference uses its Adafactor schedule for Adam, 0.01 for the first 10,000 steps, with which models of this size
    diverge. Here the learning rate rises for 10,000 updates to 1e-4, the order of GPT-3's, then falls as the inverse
    square root; `--set=LEARNING_RATE=0.01 --set=WARMUP_STEPS=0` selects the reference's.
    """

    DEVICE_MESH_SHAPE = (16, 32)
    DEVICE_ORDER = "ring"
    BATCH_SIZE = 64
    OPTIMIZER = "adamw"
    LEARNING_RATE = 1e-4
    WARMUP_STEPS = 10_000

    smoke_table: ClassVar[dict[str, Any]] = {"LEARNING_RATE": 1e-2, "TIMESCALE": 20}


@register
class DenseLm12kWide41BAdam16x16(DenseLm12kWideAdam):
    """43.9 billion weights on 512 TPU v3 cores, Adam."""

    NUM_LAYERS = 24
    BATCH_SIZE = 256


@register
class DenseLm12kWide41BAdam8x8(DenseLm12kWide41BAdam16x16):
    """43.9 billion weights on 128 TPU v3 cores, Adam, four micro-batches of 64 rows an update."""

    DEVICE_MESH_SHAPE = (8, 16)
    GRADIENT_ACCUMULATION = 4


@register
class DenseLm12kWide162BAdam16x16(DenseLm12kWideAdam):
    """174.4 billion weights on 512 TPU v3 cores, Adam."""


@register
class DenseLm12kWide162BAdamBS25616x16(DenseLm12kWideAdam):
    """174.4 billion weights on 512 TPU v3 cores, Adam, four micro-batches of 64 rows an update."""

    BATCH_SIZE = 256
    GRADIENT_ACCUMULATION = 4


@register
class DenseLm12kWide162BAdam32x32(DenseLm12kWideAdam):
    """174.4 billion weights on 2048 TPU v3 cores, Adam."""

    DEVICE_MESH_SHAPE = (64, 32)
    DEVICE_ORDER = "transposed"
    BATCH_SIZE = 256
    LOG_EVERY = 20


class MoeLm1kWide(MoeLm):
    """1024 wide with 16 heads of 128 and ReLU layers of 8192, in the manner of GShard's translation models."""

    NUM_LAYERS = 36
    MODEL_DIM = 1024
    FFN_DIM = 8192
    NUM_HEADS = 16
    FFN = ("experts", "dense")
    ACTIVATION = "relu"


@register
class MoeLm8x2B(MoeLm1kWide):
    """8 experts, 2.05 billion weights in all, on 8 devices: for one machine."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 24
    BATCH_SIZE = 64
    NUM_EXPERTS = 8
    NUM_GROUPS = 64


@register
class MoeLm128x39B(MoeLm1kWide):
    """128 experts, 39.3 billion weights in all, on 128 TPU v3 cores."""

    DEVICE_MESH_SHAPE = (128, 1)
    BATCH_SIZE = 512
    NUM_EXPERTS = 128
    NUM_GROUPS = 512


@register
class MoeLm2048x619B(MoeLm1kWide):
    """2048 experts, 619 billion weights in all, on 2048 TPU v3 cores: the scale of the GShard paper."""

    DEVICE_MESH_SHAPE = (2048, 1)
    BATCH_SIZE = 4096
    NUM_EXPERTS = 2048
    NUM_GROUPS = 2048
