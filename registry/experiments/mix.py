"""Parts of several families in one model: each is an ordinary entry, a few knobs on top of another one."""

from typing import Any, ClassVar

from registry.experiment import register
from registry.experiments.gpt import GptStdlib
from registry.experiments.mu import MuDense8B
from registry.experiments.vq import VQStdlib


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
