"""The family of bidirectional encoders trained to predict masked tokens."""

from typing import Any, ClassVar

from layers.specs import P, Specs
from registry.templates.gshard_lm import GShardLm


class BertEncoder(GShardLm):
    """A bidirectional GShard encoder with gated SiLU layers and one head of keys and values.

    It is trained to predict masked tokens from their context; the loss is a mean over masked tokens.

    The reference reads MLPerf's Wikipedia records; here the input is synthetic, text with `--set=DATA=text`, or a seqio
    task, which may mask tokens itself (SEQIO_OBJECTIVE = "encoder").
    """

    OBJECTIVE = "masked"
    NUM_KV_HEADS = 1
    ACTIVATION = "silu"
    EXTRA_LOGIT = None
    SEQ_LEN = 512
    BATCH_SIZE = 1024
    LOSS_NORMALIZER = "weights"
    Z_LOSS = 0.0
    NUM_STEPS = 10_000_000
    LOG_EVERY = 200
    SAVE_EVERY = 1000

    WEIGHTS = Specs(embedding_vm=P("model", "data"), position_tm=P("model", "data"))
    ACTIVATIONS = Specs(key_bskd=P("data", None, None, None), value_bskd=P("data", None, None, None))

    # Masked tokens are few and harder to predict than next tokens: a small vocabulary and more rows show progress
    # early.
    smoke_table: ClassVar[dict[str, Any]] = {"VOCAB_SIZE": 64, "MASK_ID": 3, "BATCH_SIZE": 32}
