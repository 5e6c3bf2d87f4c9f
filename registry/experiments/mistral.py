"""Mistral and Mixtral in their published sizes (Jiang et al. 2023; Jiang et al. 2024)."""

from layers.specs import P, Specs
from registry.experiment import register
from registry.templates.llama_lm import LlamaLm


class Mistral(LlamaLm):
    """Mistral 7B (Jiang et al. 2023): Llama with grouped queries."""

    NUM_KV_HEADS = 8
    SEQ_LEN = 8192
    BATCH_SIZE = 512


@register
class Mistral7B(Mistral):
    """7,241,732,096 weights (version 0.1): windows of 4096 positions, on 8 H100 GPUs of one box."""

    DEVICE_MESH_SHAPE = (8, 1)
    VOCAB_SIZE = 32_000
    NUM_LAYERS = 32
    MODEL_DIM = 4096
    FFN_DIM = 14_336
    NUM_HEADS = 32
    ATTENTION_WINDOW = 4096
    CONTEXT_LEN = 32_768
    GRADIENT_ACCUMULATION = 32


@register
class Mistral7Bv3(Mistral7B):
    """7,248,023,552 weights (version 0.3): no window, a larger rotary base, on 8 H100 GPUs of one box."""

    VOCAB_SIZE = 32_768
    ATTENTION_WINDOW = None
    ROTARY_BASE = 1_000_000.0


@register
class MistralNemo(Mistral):
    """12,247,782,400 weights (version 2407): heads of 128 at a width of 5120, on 16 H100 GPUs."""

    DEVICE_MESH_SHAPE = (16, 1)
    VOCAB_SIZE = 131_072
    NUM_LAYERS = 40
    MODEL_DIM = 5120
    FFN_DIM = 14_336
    NUM_HEADS = 32
    HEAD_DIM = 128
    ROTARY_BASE = 1_000_000.0
    CONTEXT_LEN = 131_072
    GRADIENT_ACCUMULATION = 32


class Mixtral(Mistral):
    """Mixtral (Jiang et al. 2024): two gated experts of eight per token, without slots.

    Entries have groups of 1024 tokens, for the load-balancing loss.
    """

    FFN = "gated_experts"
    ROUTING = "top_k"
    CAPACITY_FACTOR = None
    RECEIVE_FACTOR = 2.0  # of an even load: places for all rows of all devices would be multiplied, full or empty
    NUM_EXPERTS = 8
    ROTARY_BASE = 1_000_000.0


@register
class Mixtral8x7B(Mixtral):
    """46,702,792,704 weights, on 64 H100 GPUs: experts over data."""

    DEVICE_MESH_SHAPE = (8, 8)
    VOCAB_SIZE = 32_000
    NUM_LAYERS = 32
    MODEL_DIM = 4096
    FFN_DIM = 14_336
    NUM_HEADS = 32
    CONTEXT_LEN = 32_768
    NUM_GROUPS = 128
    AUX_LOSS = 0.00125  # router_aux_loss_coef = 0.02 of transformers
    GRADIENT_ACCUMULATION = 32


@register
class Mixtral8x22B(Mixtral):
    """140,620,634,112 weights, on 64 H100 GPUs: experts over data."""

    DEVICE_MESH_SHAPE = (8, 8)
    VOCAB_SIZE = 32_000
    NUM_LAYERS = 56
    MODEL_DIM = 6144
    FFN_DIM = 16_384
    NUM_HEADS = 48
    CONTEXT_LEN = 65_536
    NUM_GROUPS = 256
    AUX_LOSS = 3.57142857142857e-05  # router_aux_loss_coef = 0.001 of transformers
    ACTIVATIONS = Specs(residual_bsm=P("data", "model", None))
    GRADIENT_ACCUMULATION = 32
