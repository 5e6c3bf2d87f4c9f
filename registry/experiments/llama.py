"""Llama 2, 3, 3.1 and 3.2 in their published sizes (Touvron et al. 2023b; Grattafiori et al. 2024).

`python -m runners.convert import --from=FOLDER` reads their weights. To train one from the start on the tokens of its
vocabulary, set VOCABULARY=huggingface and VOCABULARY_PATH to the folder; by default tokens are bytes of text.
"""

from registry.experiment import register
from registry.templates.llama_lm import LlamaLm


class Llama2(LlamaLm):
    """Llama 2 (Touvron et al. 2023b): 32,000 SentencePiece tokens, rows of 4096."""

    VOCAB_SIZE = 32_000


@register
class Llama2_7B(Llama2):
    """6,738,415,616 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 32
    MODEL_DIM = 4096
    FFN_DIM = 11_008
    NUM_HEADS = 32
    GRADIENT_ACCUMULATION = 32


@register
class Llama2_13B(Llama2):
    """13,015,864,320 weights, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    NUM_LAYERS = 40
    MODEL_DIM = 5120
    FFN_DIM = 13_824
    NUM_HEADS = 40
    GRADIENT_ACCUMULATION = 32


@register
class Llama2_70B(Llama2):
    """68,976,648,192 weights, on 128 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 8)
    NUM_LAYERS = 80
    MODEL_DIM = 8192
    FFN_DIM = 28_672
    NUM_HEADS = 64
    NUM_KV_HEADS = 8
    LEARNING_RATE = 0.00015
    GRADIENT_ACCUMULATION = 16


class Llama3(LlamaLm):
    """Llama 3 (Grattafiori et al. 2024, section 3.2): 128,256 tokens, grouped queries, a larger rotary base."""

    VOCAB_SIZE = 128_256
    NUM_KV_HEADS = 8
    ROTARY_BASE = 500_000.0
    SEQ_LEN = 8192
    BATCH_SIZE = 512


@register
class Llama3_8B(Llama3):
    """8,030,261,248 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    MESHES = {"h100:1x8": (8, 1), "h100:2x8": (16, 1), "h200:1x8": (8, 1), "v5p:2x2x4": (16, 1)}
    NUM_LAYERS = 32
    MODEL_DIM = 4096
    FFN_DIM = 14_336
    NUM_HEADS = 32
    GRADIENT_ACCUMULATION = 32


@register
class Llama3_70B(Llama3):
    """70,553,706,496 weights, on 128 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 8)
    NUM_LAYERS = 80
    MODEL_DIM = 8192
    FFN_DIM = 28_672
    NUM_HEADS = 64
    LEARNING_RATE = 0.00015
    GRADIENT_ACCUMULATION = 16


@register
class Llama3_1_8B(Llama3_8B):
    """8,030,261,248 weights: Llama3_8B with rotary frequencies for 131,072 positions, on 8 H100 GPUs of one box."""

    CONTEXT_LEN = 131_072
    ROTARY_SCALING = "llama3"
    ROTARY_FACTOR = 8.0
    ROTARY_LENGTH = 8192


@register
class Llama3_1_8B_LongRows(Llama3_1_8B):
    """8,030,261,248 weights: Llama3_1_8B on rows of 131,072 positions, on 64 H100 GPUs, of which 8 share a row."""

    MESH_AXES = ("data", "sequence", "model")
    DEVICE_MESH_SHAPE = (8, 8, 1)
    SEQUENCE_AXIS = "sequence"
    SEQ_LEN = 131_072
    BATCH_SIZE = 32
    GRADIENT_ACCUMULATION = 4
    LOSS_CHUNK = 2048


@register
class Llama3_1_70B(Llama3_70B):
    """70,553,706,496 weights: Llama3_70B for 131,072 positions, on 128 H100 GPUs."""

    CONTEXT_LEN = 131_072
    ROTARY_SCALING = "llama3"
    ROTARY_FACTOR = 8.0
    ROTARY_LENGTH = 8192


@register
class Llama3_1_405B(Llama3_1_70B):
    """405,853,388,800 weights, on 1024 H100 GPUs."""

    DEVICE_MESH_SHAPE = (128, 8)
    NUM_LAYERS = 126
    MODEL_DIM = 16_384
    FFN_DIM = 53_248
    NUM_HEADS = 128
    LEARNING_RATE = 8e-05
    WARMUP_STEPS = 8000
    BATCH_SIZE = 1024
    GRADIENT_ACCUMULATION = 8


class Llama3_2(Llama3):
    """Llama 3.2: small models with a tied head, for 131,072 positions."""

    TIE_EMBEDDINGS = True
    CONTEXT_LEN = 131_072
    ROTARY_SCALING = "llama3"
    ROTARY_FACTOR = 32.0
    ROTARY_LENGTH = 8192


@register
class Llama3_2_1B(Llama3_2):
    """1,235,814,400 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 16
    MODEL_DIM = 2048
    FFN_DIM = 8192
    NUM_HEADS = 32
    GRADIENT_ACCUMULATION = 32


@register
class Llama3_2_3B(Llama3_2):
    """3,212,749,824 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 28
    MODEL_DIM = 3072
    FFN_DIM = 8192
    NUM_HEADS = 24
    HEAD_DIM = 128
    GRADIENT_ACCUMULATION = 32
