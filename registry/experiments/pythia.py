"""GPT-NeoX's models, and Pythia in its published sizes (Black et al. 2022; Biderman et al. 2023)."""

from typing import Any, ClassVar

from registry.experiment import register
from registry.templates.decoder import DecoderLm


class GptNeoX(DecoderLm):
    """GPT-NeoX (Black et al. 2022): layer norms, parallel branches with a norm each, a quarter of each head rotates."""

    NORM = "layer"
    RESIDUAL = "parallel"
    BIASES = ("qkv", "attention_out", "ffn", "norm")
    ROTARY_SHARE = 0.25
    ACTIVATION = "gelu_erf"
    TIE_EMBEDDINGS = False
    INIT_STDDEV = 0.02
    EMBEDDING_STDDEV = 0.02
    SEQ_LEN = 2048
    DTYPE = "bfloat16"

    smoke_table: ClassVar[dict[str, Any]] = {
        "VOCAB_SIZE": 264,
        "NUM_HEADS": 4,
        "HEAD_DIM": 8,
        "CONTEXT_LEN": None,
        "LEARNING_RATE": 5e-3,
        "DTYPE": "float32",
        "REMAT": "none",
    }


class Pythia(GptNeoX):
    """Pythia (Biderman et al. 2023, section 2.1): 2 million tokens per update, one pass over the Pile."""

    VOCAB_SIZE = 50_304
    BATCH_SIZE = 1024
    NUM_STEPS = 143_000
    WARMUP_STEPS = 1430
    WEIGHT_DECAY = 0.01
    LOG_EVERY = 10
    EVAL_EVERY = 1000
    SAVE_EVERY = 1000
    REMAT = "full"
    LOSS_CHUNK = 512


@register
class Pythia14M(Pythia):
    """14,067,712 weights, on one GPU."""

    DEVICE_MESH_SHAPE = (1, 1)
    NUM_LAYERS = 6
    MODEL_DIM = 128
    NUM_HEADS = 4
    LEARNING_RATE = 0.001
    GRADIENT_ACCUMULATION = 32


@register
class Pythia70M(Pythia):
    """70,426,624 weights, on one GPU."""

    DEVICE_MESH_SHAPE = (1, 1)
    NUM_LAYERS = 6
    MODEL_DIM = 512
    NUM_HEADS = 8
    LEARNING_RATE = 0.001
    GRADIENT_ACCUMULATION = 32


@register
class Pythia160M(Pythia):
    """162,322,944 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 12
    MODEL_DIM = 768
    NUM_HEADS = 12
    LEARNING_RATE = 0.0006
    GRADIENT_ACCUMULATION = 4


@register
class Pythia410M(Pythia):
    """405,334,016 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 24
    MODEL_DIM = 1024
    NUM_HEADS = 16
    LEARNING_RATE = 0.0003
    GRADIENT_ACCUMULATION = 4


@register
class Pythia1B(Pythia):
    """1,011,781,632 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 16
    MODEL_DIM = 2048
    NUM_HEADS = 8
    LEARNING_RATE = 0.0003
    GRADIENT_ACCUMULATION = 8


@register
class Pythia1_4B(Pythia):
    """1,414,647,808 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 24
    MODEL_DIM = 2048
    NUM_HEADS = 16
    LEARNING_RATE = 0.0002
    GRADIENT_ACCUMULATION = 8


@register
class Pythia2_8B(Pythia):
    """2,775,208,960 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 32
    MODEL_DIM = 2560
    NUM_HEADS = 32
    LEARNING_RATE = 0.00016
    GRADIENT_ACCUMULATION = 16


@register
class Pythia6_9B(Pythia):
    """6,857,302,016 weights, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 32
    MODEL_DIM = 4096
    NUM_HEADS = 32
    VOCAB_SIZE = 50_432
    LEARNING_RATE = 0.00012
    GRADIENT_ACCUMULATION = 32


@register
class Pythia12B(Pythia):
    """11,846,072,320 weights, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    NUM_LAYERS = 36
    MODEL_DIM = 5120
    NUM_HEADS = 40
    VOCAB_SIZE = 50_688
    LEARNING_RATE = 0.00012
    GRADIENT_ACCUMULATION = 16
