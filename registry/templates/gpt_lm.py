"""The family of fattorib's GPT transformers: ALiBi, parallel residuals, static SGU, head-QK."""

from typing import Any, ClassVar

from registry.templates.decoder import DecoderLm


class GptLm(DecoderLm):
    """GPT-2 (Radford et al. 2019) as fattorib/transformer trains it.

    Layer norms, tanh-GELU, biases, a tied embedding, initial values N(0, 0.02) with residual branches scaled by
    (2 layers)^-1/2; ALiBi (Press et al. 2022), or learned positions; residual branches sequential, or parallel after a
    shared norm. Gradients are clipped entry by entry; weight decay does not act on biases, norms and positions. The
    embedding and the hidden layer have no dropout. MIXER = static_sgu filters half of the channels, HEAD_QK adds a
    pointer head.
    """

    NUM_LAYERS = 12
    MODEL_DIM = 768
    NUM_HEADS = 12
    VOCAB_SIZE = 50304
    SEQ_LEN = 1024
    NORM = "layer"
    NORM_EPSILON = 1e-6
    POSITIONS = "alibi"
    BIASES = ("qkv", "attention_out", "ffn", "norm")
    INIT_STDDEV = 0.02
    DROPOUT = 0.1
    EMBEDDING_DROPOUT = 0.0
    HIDDEN_DROPOUT = 0.0

    LEARNING_RATE = 8e-4
    WARMUP_STEPS = 2000
    DECAY_STEPS = 58_000
    NUM_STEPS = 60_000
    CLIP_NORM = None
    CLIP_VALUE = 1.0
    NO_DECAY = ("position_tm",)
    BATCH_SIZE = 512
    LOG_EVERY = 100
    EVAL_EVERY = 500
    EVAL_ROWS = None
    SAVE_EVERY = 500
    DTYPE = "bfloat16"

    smoke_table: ClassVar[dict[str, Any]] = {
        "VOCAB_SIZE": 264,
        "LEARNING_RATE": 5e-3,
        "DECAY_STEPS": None,
        "DTYPE": "float32",
        "DROPOUT": 0.0,
    }


class ParallelGptLm(GptLm):
    """GPT with parallel attention and feed-forward layer after a shared norm (Wang and Komatsuzaki 2021, GPT-J)."""

    RESIDUAL = "parallel_shared_norm"
