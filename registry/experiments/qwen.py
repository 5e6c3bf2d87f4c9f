"""Qwen2.5 and Qwen3 in their published sizes (Qwen Team 2024; Qwen Team 2025)."""

from typing import Any, ClassVar

from registry.experiment import register
from registry.templates.llama_lm import LlamaLm


class Qwen2(LlamaLm):
    """Qwen2 and Qwen2.5 (Qwen Team 2024): Llama with biases of queries, keys and values."""

    VOCAB_SIZE = 152_064
    BIASES = ("qkv",)
    NORM_EPSILON = 1e-06
    ROTARY_BASE = 1_000_000.0
    CONTEXT_LEN = 131_072


@register
class Qwen2_5_0_5B(Qwen2):
    """494,032,768 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    VOCAB_SIZE = 151_936
    TIE_EMBEDDINGS = True
    CONTEXT_LEN = 32_768
    NUM_LAYERS = 24
    MODEL_DIM = 896
    FFN_DIM = 4864
    NUM_HEADS = 14
    NUM_KV_HEADS = 2
    GRADIENT_ACCUMULATION = 8


@register
class Qwen2_5_1_5B(Qwen2):
    """1,543,714,304 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    VOCAB_SIZE = 151_936
    TIE_EMBEDDINGS = True
    NUM_LAYERS = 28
    MODEL_DIM = 1536
    FFN_DIM = 8960
    NUM_HEADS = 12
    NUM_KV_HEADS = 2
    GRADIENT_ACCUMULATION = 8


@register
class Qwen2_5_3B(Qwen2):
    """3,085,938,688 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    VOCAB_SIZE = 151_936
    TIE_EMBEDDINGS = True
    CONTEXT_LEN = 32_768
    NUM_LAYERS = 36
    MODEL_DIM = 2048
    FFN_DIM = 11_008
    NUM_HEADS = 16
    NUM_KV_HEADS = 2
    GRADIENT_ACCUMULATION = 16


@register
class Qwen2_5_7B(Qwen2):
    """7,615,616,512 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 28
    MODEL_DIM = 3584
    FFN_DIM = 18_944
    NUM_HEADS = 28
    NUM_KV_HEADS = 4
    GRADIENT_ACCUMULATION = 32


@register
class Qwen2_5_14B(Qwen2):
    """14,770,033,664 weights, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    NORM_EPSILON = 1e-05
    NUM_LAYERS = 48
    MODEL_DIM = 5120
    FFN_DIM = 13_824
    NUM_HEADS = 40
    NUM_KV_HEADS = 8
    GRADIENT_ACCUMULATION = 32


@register
class Qwen2_5_32B(Qwen2):
    """32,763,876,352 weights, on 64 H100 GPUs."""

    DEVICE_MESH_SHAPE = (64, 1)
    NORM_EPSILON = 1e-05
    NUM_LAYERS = 64
    MODEL_DIM = 5120
    FFN_DIM = 27_648
    NUM_HEADS = 40
    NUM_KV_HEADS = 8
    GRADIENT_ACCUMULATION = 16


@register
class Qwen2_5_72B(Qwen2):
    """72,706,203,648 weights, on 128 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 8)
    NORM_EPSILON = 1e-05
    NUM_LAYERS = 80
    MODEL_DIM = 8192
    FFN_DIM = 29_568
    NUM_HEADS = 64
    NUM_KV_HEADS = 8
    GRADIENT_ACCUMULATION = 16


class Qwen3(LlamaLm):
    """Qwen3 (Qwen Team 2025): norms of each head's query and key, heads of 128, no biases."""

    VOCAB_SIZE = 151_936
    HEAD_DIM = 128
    NUM_KV_HEADS = 8
    QK_NORM = "rms"
    NORM_EPSILON = 1e-06
    ROTARY_BASE = 1_000_000.0
    CONTEXT_LEN = 40_960


@register
class Qwen3_0_6B(Qwen3):
    """596,049,920 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 28
    MODEL_DIM = 1024
    FFN_DIM = 3072
    NUM_HEADS = 16
    TIE_EMBEDDINGS = True
    GRADIENT_ACCUMULATION = 8


@register
class Qwen3_1_7B(Qwen3):
    """1,720,574,976 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 28
    MODEL_DIM = 2048
    FFN_DIM = 6144
    NUM_HEADS = 16
    TIE_EMBEDDINGS = True
    GRADIENT_ACCUMULATION = 8


@register
class Qwen3_4B(Qwen3):
    """4,022,468,096 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 36
    MODEL_DIM = 2560
    FFN_DIM = 9728
    NUM_HEADS = 32
    TIE_EMBEDDINGS = True
    GRADIENT_ACCUMULATION = 16


@register
class Qwen3_8B(Qwen3):
    """8,190,735,360 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 36
    MODEL_DIM = 4096
    FFN_DIM = 12_288
    NUM_HEADS = 32
    GRADIENT_ACCUMULATION = 32


@register
class Qwen3_14B(Qwen3):
    """14,768,307,200 weights, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    NUM_LAYERS = 40
    MODEL_DIM = 5120
    FFN_DIM = 17_408
    NUM_HEADS = 40
    GRADIENT_ACCUMULATION = 32


@register
class Qwen3_32B(Qwen3):
    """32,762,123,264 weights, on 64 H100 GPUs."""

    DEVICE_MESH_SHAPE = (64, 1)
    NUM_LAYERS = 64
    MODEL_DIM = 5120
    FFN_DIM = 25_600
    NUM_HEADS = 64
    GRADIENT_ACCUMULATION = 16


class Qwen3Moe(Qwen3):
    """Qwen3 with 128 gated experts, eight per token, without slots."""

    FFN = "gated_experts"
    ROUTING = "top_k"
    EXPERTS_PER_TOKEN = 8
    CAPACITY_FACTOR = None
    RECEIVE_FACTOR = 2.0  # as in mistral.Mixtral
    NUM_EXPERTS = 128
    NUM_KV_HEADS = 4

    smoke_table: ClassVar[dict[str, Any]] = {"EXPERTS_PER_TOKEN": 3}


@register
class Qwen3_30B_A3B(Qwen3Moe):
    """30,532,122,624 weights, 3.3 billion of them per token, on 32 H100 GPUs."""

    DEVICE_MESH_SHAPE = (32, 1)
    NUM_LAYERS = 48
    MODEL_DIM = 2048
    NUM_HEADS = 32
    EXPERT_DIM = 768
    NUM_GROUPS = 128
    AUX_LOSS = 0.000166666666666667  # router_aux_loss_coef = 0.001 of transformers
    GRADIENT_ACCUMULATION = 32


@register
class Qwen3_235B_A22B(Qwen3Moe):
    """235,093,634,560 weights, 22 billion of them per token, on 256 H100 GPUs."""

    DEVICE_MESH_SHAPE = (64, 4)
    NUM_LAYERS = 94
    MODEL_DIM = 4096
    NUM_HEADS = 64
    EXPERT_DIM = 1536
    NUM_GROUPS = 256
    AUX_LOSS = 8.51063829787234e-05  # router_aux_loss_coef = 0.001 of transformers
    GRADIENT_ACCUMULATION = 16
