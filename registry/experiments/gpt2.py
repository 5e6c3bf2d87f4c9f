"""GPT-2 in the four sizes that were published (Radford et al. 2019; weights counted with a tied head).

Import their weights with `python -m runners.convert import --format=gpt2`. Their training was not published except for
512 rows per batch: the learning rates here are those of GPT-3's models of these sizes (Brown et al. 2020, table 2.1).
A larger model of this form, for which Megatron-LM was built, has the rate of the largest of those.
Tokens are bytes of text unless VOCABULARY_PATH names the folder of GPT-2's own vocabulary (VOCABULARY = gpt2).
"""

from typing import Any, ClassVar

from layers.specs import P, Specs
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


@register
class Gpt1T(Gpt2):
    """1,008,038,758,400 weights: 128 layers, 25,600 wide, in a pipeline of 64 stages, on 1024 H100 GPUs.

    Sizes and batch are those of the largest model of Narayanan et al. 2021 (Megatron-LM, table 1). Each box of 8 GPUs
    is a stage and has heads, hidden units and the positions of the residual stream split over its GPUs; two such
    pipelines share the rows of a batch, and the slots of the optimizer. Without dropout.
    """

    MESH_AXES = ("stage", "data", "model")
    DEVICE_MESH_SHAPE = (64, 2, 8)
    LAYOUT = "tensor_parallel"
    ACTIVATIONS = Specs(residual_bsm=P(("stage", "data"), "model", None))
    STACK = P("stage")
    PIPELINE_REPEATS = 2
    PIPELINE_MICROBATCHES = 384
    ZERO_STAGE = 1
    VOCAB_SIZE = 51_200
    NUM_LAYERS = 128
    MODEL_DIM = 25_600
    NUM_HEADS = 160
    SEQ_LEN = 2048
    BATCH_SIZE = 3072
    GRADIENT_ACCUMULATION = 4
    DROPOUT = 0.0
    INIT_STDDEV = 0.006  # about the square root of 1 / width
    LOSS_CHUNK = 512
    REMAT = "full"
    LEARNING_RATE = 6e-5

    smoke_table: ClassVar[dict[str, Any]] = {"REMAT": "none", "LOSS_CHUNK": None}
