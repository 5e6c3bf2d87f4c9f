"""Parts of several families in one model: each is an ordinary entry, a few knobs on top of another one."""

from typing import Any, ClassVar

from registry.experiment import register
from registry.experiments.gpt import GptStdlib
from registry.experiments.mu import MuDense8B
from registry.experiments.vq import VQStdlib
from registry.templates.llama_lm import LlamaLm


@register
class VqMoeStdlib(VQStdlib):
    """Transformer-VQ with experts under muP, with ZeRO, truncated back-propagation and packed files; 1.1M weights."""

    FFN = ("experts", "none")
    NUM_EXPERTS = 4
    EXPERT_DIM = 256
    SECOND_EXPERT = "all"
    PARAMETRIZATION = "mup"
    BASE_WIDTH = 64
    ZERO_STAGE = 1
    TBPTT_LEN = 256
    ROWS = "pack"

    smoke_table: ClassVar[dict[str, Any]] = {"HEAD_DIM": 32}  # as mu.MuVQStdlib


@register
class GptMoeStdlib(GptStdlib):
    """GptStdlib (ALiBi, parallel branches) with experts in every other layer and a pointer head; 1.1M weights."""

    FFN = ("experts", "dense")
    NUM_EXPERTS = 4
    EXPERT_DIM = 256
    SECOND_EXPERT = "all"
    HEAD_QK = 32


@register
class MuVqGShard(MuDense8B):
    """Lingvo's 8B model under muP with Transformer-VQ's attention: linear time in row length; 9.4B weights."""

    MIXER = "vq"
    POSITIONS = "distance"


@register
class DeepSeekMoe(LlamaLm):
    """674,836,098,560 weights, 41 billion of them per token, on 512 H100 GPUs: 64 boxes of 8.

    Sizes, routing and training are those of DeepSeek-V3 (DeepSeek-AI 2024, section 4.2): 256 experts, of which a token
    has eight and a shared one, after three dense layers; sigmoid gates; biases that even out the load. Attention has
    eight heads of keys and values instead of latent ones (MLA), and no second token is predicted. Experts
    are split over "data": a device has four, and an eighth of their hidden units.
    """

    DEVICE_MESH_SHAPE = (64, 8)
    VOCAB_SIZE = 129_280
    NUM_LAYERS = 61
    MODEL_DIM = 7168
    NUM_HEADS = 128
    NUM_KV_HEADS = 8
    HEAD_DIM = 128
    FFN = ("gated",) * 3 + ("gated_experts",) * 58
    FFN_DIM = 18_432
    EXPERT_DIM = 2048
    NUM_EXPERTS = 256
    ROUTING = "top_k"
    EXPERTS_PER_TOKEN = 8
    GATES = "normalized_sigmoid"
    GATE_SCALE = 2.5
    SHARED_EXPERTS = 1
    BIAS_RATE = 0.001
    AUX_LOSS = 0.0
    CAPACITY_FACTOR = None
    RECEIVE_FACTOR = 1.5
    NUM_GROUPS = 64
    INIT_STDDEV = 0.006
    EMBEDDING_STDDEV = 0.006
    NORM_EPSILON = 1e-6
    BATCH_SIZE = 15_360
    GRADIENT_ACCUMULATION = 120
    LEARNING_RATE = 2.2e-4

    smoke_table: ClassVar[dict[str, Any]] = {"EXPERTS_PER_TOKEN": 3}
