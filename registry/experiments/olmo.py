"""OLMo 2 in its published sizes (Team OLMo 2025)."""

from registry.experiment import register
from registry.templates.llama_lm import LlamaLm


class Olmo2(LlamaLm):
    """OLMo 2 (Team OLMo 2025, section 3): norms of branch outputs, and of all queries and all keys together."""

    VOCAB_SIZE = 100_352
    RESIDUAL = "post_norm"
    QK_NORM = "rms_all_heads"
    NORM_EPSILON = 1e-06
    ROTARY_BASE = 500_000.0


@register
class Olmo2_1B(Olmo2):
    """1,484,916,736 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 16
    MODEL_DIM = 2048
    FFN_DIM = 8192
    NUM_HEADS = 16
    GRADIENT_ACCUMULATION = 8


@register
class Olmo2_7B(Olmo2):
    """7,298,617,344 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 32
    MODEL_DIM = 4096
    FFN_DIM = 11_008
    NUM_HEADS = 32
    GRADIENT_ACCUMULATION = 32


@register
class Olmo2_13B(Olmo2):
    """13,716,198,400 weights, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    NUM_LAYERS = 40
    MODEL_DIM = 5120
    FFN_DIM = 13_824
    NUM_HEADS = 40
    BATCH_SIZE = 2048
    LEARNING_RATE = 0.0009
    GRADIENT_ACCUMULATION = 32


@register
class Olmo2_32B(Olmo2):
    """32,234,279,936 weights, on 64 H100 GPUs."""

    DEVICE_MESH_SHAPE = (64, 1)
    NUM_LAYERS = 64
    MODEL_DIM = 5120
    FFN_DIM = 27_648
    NUM_HEADS = 40
    NUM_KV_HEADS = 8
    BATCH_SIZE = 2048
    LEARNING_RATE = 0.0006
    GRADIENT_ACCUMULATION = 16
