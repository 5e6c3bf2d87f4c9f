"""The family of Llama and its successors: RMS norms, rotary positions, gated feed-forward layers, no biases."""

from typing import Any, ClassVar

from registry.templates.decoder import DecoderLm, IfOn


class LlamaLm(DecoderLm):
    """Llama (Touvron et al. 2023, sections 2.2 and 2.3): SwiGLU, RMS norms of branch inputs, rotary positions.

    Sizes, positions and vocabulary are those of the published models; optimizer, schedule and batch those of the paper
    on Llama 2 (Touvron et al. 2023b, section 2.2). All initial matrices are N(0, 0.02).
    """

    NUM_HEADS = 32
    NORM_EPSILON = 1e-5
    FFN = "gated"
    ACTIVATION = "silu"
    TIE_EMBEDDINGS = False
    INIT_STDDEV = 0.02
    EMBEDDING_STDDEV = 0.02
    BRANCH_INIT = "fan_in"
    SEQ_LEN = 4096
    BATCH_SIZE = 1024
    LEARNING_RATE = 3e-4
    ADAM_EPSILON = 1e-5
    WARMUP_STEPS = 2000
    NUM_STEPS = 500_000
    LOG_EVERY = 10
    EVAL_EVERY = 1000
    SAVE_EVERY = 1000
    DTYPE = "bfloat16"
    REMAT = "full"
    LOSS_CHUNK = 512  # logits of all positions would need more memory than the layers

    smoke_table: ClassVar[dict[str, Any]] = {
        "VOCAB_SIZE": 264,
        "NUM_HEADS": 8,
        "NUM_KV_HEADS": IfOn(4),
        "HEAD_DIM": 8,
        "CONTEXT_LEN": None,
        "ROTARY_LENGTH": IfOn(8),
        "ATTENTION_WINDOW": IfOn(8),
        "LEARNING_RATE": 5e-3,
        "DTYPE": "float32",
        "REMAT": "none",
    }
