"""fattorib's GPT transformers under their names: the current code (ALiBi), and that of October 2022.

Weights are counted with the vocabularies of GPT-2 and GPT-NeoX, which VOCABULARY and VOCABULARY_PATH select; by
default tokens are bytes of text, which use the first 256 rows.
"""

from registry.experiment import register
from registry.templates.gpt_lm import GptLm, ParallelGptLm


@register
class GptQA(ParallelGptLm):
    """6.8 million weights: two layers, for quick experiments."""

    NUM_LAYERS = 2
    MODEL_DIM = 128
    NUM_HEADS = 16
    VOCAB_SIZE = 50257
    DROPOUT = 0.0


@register
class GptUnittest(ParallelGptLm):
    """123.6 million weights with GPT-2's own vocabulary, without dropout."""

    VOCAB_SIZE = 50257
    DROPOUT = 0.0


@register
class GptSmall(ParallelGptLm):
    """3.3 million weights: two layers, 64 wide."""

    NUM_LAYERS = 2
    MODEL_DIM = 64
    NUM_HEADS = 8
    VOCAB_SIZE = 50258
    SEQ_LEN = 512


@register
class GptTest(ParallelGptLm):
    """6.8 million weights at a context of 32."""

    NUM_LAYERS = 2
    MODEL_DIM = 128
    NUM_HEADS = 4
    VOCAB_SIZE = 50264
    SEQ_LEN = 32


@register
class GptSmol(GptLm):
    """81.3 million weights in 6 layers at a context of 2048."""

    NUM_LAYERS = 6
    VOCAB_SIZE = 50432
    SEQ_LEN = 2048
    BATCH_SIZE = 256
    GRADIENT_ACCUMULATION = 2


@register
class GptBase(ParallelGptLm):
    """123.7 million weights: 12 layers, 768 wide."""

    LEARNING_RATE = 6e-4
    DECAY_STEPS = 22_000
    NUM_STEPS = 24_550


@register
class GptBaseStaged(GptBase):
    """GptBase with rows cut to 128 tokens in the first quarter of its updates, about 6 thousand.

    On OpenWebText it reached a perplexity of 21.80 with 9.9 billion tokens in 6 hours on a TPU v3-32, GptBase 21.60
    with 12.6 billion in 6.75 hours; about 5.25 thousand more updates of full rows reduced it to 21.16.
    """

    LENGTH_STAGES = (128,)
    STAGED_STEPS = 6000


@register
class GptMedium(ParallelGptLm):
    """303.4 million weights: 20 layers, 1024 wide."""

    NUM_LAYERS = 20
    MODEL_DIM = 1024
    NUM_HEADS = 16
    LEARNING_RATE = 4e-4


@register
class GptLarge(GptLm):
    """587.2 million weights: the 580M run, 97 thousand updates of half a million tokens."""

    NUM_LAYERS = 18
    MODEL_DIM = 1536
    GRADIENT_ACCUMULATION = 8
    LEARNING_RATE = 2.5e-4
    DECAY_STEPS = 90_000
    NUM_STEPS = 97_000


@register
class GptXL(GptLarge):
    """757.2 million weights: the 760M run, started from the 580M one with a third more layers.

    To start it so, set `--set=WARM_START=FOLDER` to a run of GptLarge; the optimizer was not restored.
    """

    NUM_LAYERS = 24
    GRADIENT_ACCUMULATION = 16
    LEARNING_RATE = 2e-4
    DECAY_STEPS = 80_000
    NUM_STEPS = 82_000


@register
class GptXXL(GptLarge):
    """1.097 billion weights: the 1.1B run, started from the 580M one with every layer doubled.

    To start it so, set `--set=WARM_START=FOLDER` to a run of GptLarge; the optimizer was not restored.
    """

    NUM_LAYERS = 36
    SEQ_LEN = 512
    BATCH_SIZE = 1024
    GRADIENT_ACCUMULATION = 32
    LEARNING_RATE = 2e-4
    DECAY_STEPS = 85_000
    NUM_STEPS = 90_000


class Gpt2022(ParallelGptLm):
    """The presets of 2 October 2022: no dropout, GPT-2's vocabulary, context 512."""

    VOCAB_SIZE = 50257
    SEQ_LEN = 512
    DROPOUT = 0.0


@register
class Gpt2022QA(Gpt2022):
    """35.2 million weights: three layers, 512 wide."""

    NUM_LAYERS = 3
    MODEL_DIM = 512
    NUM_HEADS = 8


@register
class Gpt2022Unittest(Gpt2022):
    """123.6 million weights: GptUnittest at a context of 512."""


@register
class Gpt2022Small(Gpt2022):
    """81.1 million weights in 6 layers."""

    NUM_LAYERS = 6


@register
class Gpt2022Base(Gpt2022):
    """124.0 million weights, 393 thousand of them in a pointer head to earlier tokens."""

    HEAD_QK = 256


@register
class Gpt2022Medium(Gpt2022):
    """353.7 million weights: 24 layers, 1024 wide."""

    NUM_LAYERS = 24
    MODEL_DIM = 1024
    NUM_HEADS = 16
    SEQ_LEN = 1024


@register
class Gpt2022Large(Gpt2022Medium):
    """757.1 million weights, 1536 wide."""

    MODEL_DIM = 1536


@register
class Gpt2022XL(Gpt2022Medium):
    """1.311 billion weights, 2048 wide."""

    MODEL_DIM = 2048


@register
class GptStaticSgu(ParallelGptLm):
    """102.4 million weights: GptBase with a fixed filter instead of attention on half of the channels."""

    MIXER = "static_sgu"


@register
class GptStdlib(ParallelGptLm):
    """A small GPT with ALiBi on the standard library's source, for laptops."""

    NUM_LAYERS = 4
    MODEL_DIM = 128
    NUM_HEADS = 4
    VOCAB_SIZE = 256
    SEQ_LEN = 256
    BATCH_SIZE = 4
    DROPOUT = 0.0
    LEARNING_RATE = 3e-3
    WARMUP_STEPS = 100
    DECAY_STEPS = None
    NUM_STEPS = 1200
    LOG_EVERY = 50
    EVAL_ROWS = 256
    EVAL_EVERY = 200
    SAVE_EVERY = 200
    DTYPE = "float32"
    UNROLL = 4
