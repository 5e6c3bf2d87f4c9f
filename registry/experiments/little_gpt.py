"""The five published sizes of fattorib/Little-GPT, the torch code before fattorib's GPT transformers.

Import their weights with `python -m runners.convert import --format=little_gpt`. The three with ALiBi were trained at a
context of 512, and work at longer ones. Tokens are bytes of text unless VOCABULARY = gpt2.
"""

from registry.experiment import register
from registry.templates.gpt_lm import GptLm


class LittleGpt(GptLm):
    """The exact GELU, epsilon 1e-5, GPT-2's vocabulary; learned positions, sequential residual branches."""

    VOCAB_SIZE = 50257
    POSITIONS = "learned"
    ACTIVATION = "gelu_erf"
    NORM_EPSILON = 1e-5


class LittleGptAlibi(LittleGpt):
    """ALiBi, and parallel residual branches after a shared norm."""

    POSITIONS = "alibi"
    RESIDUAL = "parallel_shared_norm"
    NUM_HEADS = 8
    SEQ_LEN = 512


@register
class LittleGpt124M(LittleGpt):
    """124,439,808 weights (`base`): 12 layers, 768 wide."""


@register
class LittleGpt127M(LittleGptAlibi):
    """127,030,272 weights (`base*`): 6 layers, 1024 wide."""

    NUM_LAYERS = 6
    MODEL_DIM = 1024


@register
class LittleGpt303M(LittleGptAlibi):
    """303,825,408 weights (`medium*`): 8 layers, 1536 wide."""

    NUM_LAYERS = 8
    MODEL_DIM = 1536


@register
class LittleGpt354M(LittleGpt):
    """354,823,168 weights (`medium`): 24 layers, 1024 wide."""

    NUM_LAYERS = 24
    MODEL_DIM = 1024
    NUM_HEADS = 16


@register
class LittleGpt1B(LittleGptAlibi):
    """1,009,309,696 weights (`XL*`): 18 layers, 2048 wide, 4,096 of them in a norm of the embedding."""

    NUM_LAYERS = 18
    MODEL_DIM = 2048
    EMBEDDING_NORM = True
