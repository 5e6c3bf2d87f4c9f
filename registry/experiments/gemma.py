"""Gemma 2 and the text models of Gemma 3 in their published sizes (Gemma Team 2024; Gemma Team 2025)."""

from typing import Any, ClassVar

from registry.experiment import register
from registry.templates.llama_lm import LlamaLm


class Gemma2(LlamaLm):
    """Gemma 2 (Gemma Team 2024): windows in every other layer, norms around branches, caps on scores and logits."""

    VOCAB_SIZE = 256_000
    SEQ_LEN = 8192
    BATCH_SIZE = 512
    HEAD_DIM = 256
    ACTIVATION = "gelu_tanh"
    RESIDUAL = "sandwich_norm"
    NORM_SCALE = "one_plus_vector"
    NORM_EPSILON = 1e-06
    TIE_EMBEDDINGS = True
    EMBEDDING_SCALE = "sqrt"
    ATTENTION_WINDOW = (4096, None)
    ATTENTION_SOFTCAP = 50.0
    LOGITS_SOFTCAP = 30.0

    smoke_table: ClassVar[dict[str, Any]] = {"ATTENTION_WINDOW": (8, None)}


@register
class Gemma2_2B(Gemma2):
    """2,614,341,888 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 26
    MODEL_DIM = 2304
    FFN_DIM = 9216
    NUM_HEADS = 8
    NUM_KV_HEADS = 4
    GRADIENT_ACCUMULATION = 16


@register
class Gemma2_9B(Gemma2):
    """9,241,705,984 weights, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    NUM_LAYERS = 42
    MODEL_DIM = 3584
    FFN_DIM = 14_336
    NUM_HEADS = 16
    NUM_KV_HEADS = 8
    GRADIENT_ACCUMULATION = 32


@register
class Gemma2_27B(Gemma2):
    """27,227,128,320 weights, on 64 H100 GPUs."""

    DEVICE_MESH_SHAPE = (64, 1)
    NUM_LAYERS = 46
    MODEL_DIM = 4608
    FFN_DIM = 36_864
    NUM_HEADS = 32
    NUM_KV_HEADS = 16
    HEAD_DIM = 128
    ATTENTION_SCALE = 144**-0.5  # MODEL_DIM / NUM_HEADS
    GRADIENT_ACCUMULATION = 8


class Gemma3(LlamaLm):
    """Gemma 3 for text (Gemma Team 2025): five layers with windows and short wavelengths, then one without."""

    VOCAB_SIZE = 262_144
    SEQ_LEN = 8192
    BATCH_SIZE = 512
    CONTEXT_LEN = 32_768
    NUM_HEADS = 4
    NUM_KV_HEADS = 1
    HEAD_DIM = 256
    ACTIVATION = "gelu_tanh"
    RESIDUAL = "sandwich_norm"
    NORM_SCALE = "one_plus_vector"
    NORM_EPSILON = 1e-06
    QK_NORM = "rms"
    TIE_EMBEDDINGS = True
    EMBEDDING_SCALE = "sqrt"
    ATTENTION_WINDOW = (*(512,) * 5, None)
    ROTARY_BASE = (*(10_000.0,) * 5, 1_000_000.0)

    smoke_table: ClassVar[dict[str, Any]] = {
        "ATTENTION_WINDOW": (*(8,) * 5, None),
        "GRADIENT_ACCUMULATION": 1,  # the pattern has six layers, which take long to compile
        "BATCH_SIZE": 8,
    }


@register
class Gemma3_270M(Gemma3):
    """268,098,176 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 18
    MODEL_DIM = 640
    FFN_DIM = 2048
    NUM_HEADS = 4
    GRADIENT_ACCUMULATION = 4


@register
class Gemma3_1B(Gemma3):
    """999,885,952 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 26
    MODEL_DIM = 1152
    FFN_DIM = 6912
    NUM_HEADS = 4
    GRADIENT_ACCUMULATION = 8
