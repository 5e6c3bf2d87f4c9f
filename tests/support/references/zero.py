"""The model of the tests of ZeRO, and knobs that several of them use."""

from registry.experiments.zero import ZeroLm


class Sheet(ZeroLm):
    """The model of the reference measurements: 3,683,840 weights."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 4
    MODEL_DIM = 256
    NUM_HEADS = 8
    VOCAB_SIZE = 2048
    BIASES = ("qkv", "attention_out", "ffn", "norm")
    SEQ_LEN = 64
    BATCH_SIZE = 16
    DROPOUT = 0.0
    DATA = "synthetic"
    DTYPE = "float32"
    SCHEDULE = "constant"
    WARMUP_STEPS = 0


NARROW = {"PARAM_DTYPE": "bfloat16", "GRADIENT_DTYPE": "bfloat16"}
UNEVEN = {"MODEL_DIM": 36, "NUM_HEADS": 3, "FFN_DIM": 50, "VOCAB_SIZE": 63}
