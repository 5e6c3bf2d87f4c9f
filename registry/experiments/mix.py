"""Parts of several families in one model: each is an ordinary entry, a few knobs on top of another one."""

from registry.experiment import register
from registry.experiments.gpt import GptStdlib
from registry.experiments.mu import MuDense8B
from registry.experiments.vq import VQStdlib


@register
class VqMoeStdlib(VQStdlib):
    """Transformer-VQ with experts under muP, with ZeRO, truncated back-propagation and packed files."""

    FFN = ("experts", "none")
    NUM_EXPERTS = 4
    EXPERT_DIM = 256
    SECOND_EXPERT = "all"
    PARAMETRIZATION = "mup"
    BASE_WIDTH = 64
    ZERO_STAGE = 1
    TBPTT_LEN = 256
    ROWS = "pack"


@register
class GptMoeStdlib(GptStdlib):
    """GptStdlib (ALiBi, parallel branches) with experts in every other layer and a pointer head."""

    FFN = ("experts", "dense")
    NUM_EXPERTS = 4
    EXPERT_DIM = 256
    SECOND_EXPERT = "all"
    HEAD_QK = 32


@register
class MuVqGShard(MuDense8B):
    """Lingvo's 8B model under muP with Transformer-VQ's attention: linear time in the length of a row."""

    MIXER = "vq"
    POSITIONS = "distance"
