"""GPT-2 in the four sizes that were published (Radford et al. 2019; weights counted with a tied head).

Import their weights with `python -m runners.convert import --format=gpt2`. Their training was not published except for
512 rows per batch: the learning rates here are those of GPT-3's models of these sizes (Brown et al. 2020, table 2.1).
Tokens are bytes of text unless VOCABULARY_PATH names the folder of GPT-2's own vocabulary (VOCABULARY = gpt2).
"""

from registry.experiment import register
from registry.templates.gpt_lm import GptLm


class Gpt2(GptLm):
    """Sequential blocks, learned positions, dropout on embedding, attention and branches."""

    VOCAB_SIZE = 50257
    POSITIONS = "learned"
    NORM_EPSILON = 1e-5
    EMBEDDING_DROPOUT = None


@register
class Gpt2Small(Gpt2):
    """124,439,808 weights: 12 layers, 768 wide."""

    LEARNING_RATE = 6e-4


@register
class Gpt2Medium(Gpt2):
    """354,823,168 weights: 24 layers, 1024 wide."""

    NUM_LAYERS = 24
    MODEL_DIM = 1024
    NUM_HEADS = 16
    LEARNING_RATE = 3e-4


@register
class Gpt2Large(Gpt2):
    """774,030,080 weights: 36 layers, 1280 wide."""

    NUM_LAYERS = 36
    MODEL_DIM = 1280
    NUM_HEADS = 20
    LEARNING_RATE = 2.5e-4


@register
class Gpt2XL(Gpt2):
    """1,557,611,200 weights: 48 layers, 1600 wide."""

    NUM_LAYERS = 48
    MODEL_DIM = 1600
    NUM_HEADS = 25
    LEARNING_RATE = 2e-4
