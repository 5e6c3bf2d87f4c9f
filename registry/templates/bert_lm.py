"""The template of bidirectional encoders trained to predict masked tokens."""

import fiddle as fdl

from layers.specs import P, Specs
from registry.templates.gshard_lm import GShardLm
from tasks.inputs.masked import MaskedInput


class BertEncoder(GShardLm):
    """A bidirectional GShard encoder with gated SiLU layers and one head of keys and values.

    It is trained to predict masked tokens from their context; the loss is a mean over masked tokens.

    The reference reads MLPerf's Wikipedia records; here the input is synthetic, text with `--set=DATA=text`, or a seqio
    task, which may mask tokens itself (SEQIO_OBJECTIVE = "encoder").
    """

    CAUSAL = False
    NUM_KV_HEADS = 1
    ACTIVATION = "silu"
    EXTRA_LOGIT = None
    SEQ_LEN = 512
    BATCH_SIZE = 1024
    LOSS_NORMALIZER = "weights"
    Z_LOSS = 0.0

    # Data
    MASK_RATE: float = 0.12  # share of tokens replaced by MASK_ID
    RANDOM_RATE: float = 0.015  # share of tokens replaced by a random token
    SAME_RATE: float = 0.015  # share of tokens that stay unchanged but are predicted
    MASK_ID: int = 103  # id of the mask token
    TEXT_MASK_ID: int = 1  # the mask token of bytes: a byte that text does not contain
    NUM_STEPS = 10_000_000
    LOG_EVERY = 200
    SAVE_EVERY = 1000

    WEIGHTS = GShardLm.WEIGHTS | Specs(embedding_vm=P("model", "data"))
    OPTIONAL_WEIGHTS = GShardLm.OPTIONAL_WEIGHTS | Specs(position_tm=P("model", "data"))
    ACTIVATIONS = GShardLm.ACTIVATIONS | Specs(
        key_bskd=P("data", None, None, None), value_bskd=P("data", None, None, None)
    )

    @classmethod
    def Smoke(cls):
        # Masked tokens are few and harder to predict than next tokens: a small vocabulary and more rows show progress
        # early.
        return super().Smoke().derive(VOCAB_SIZE=59 if cls.PAD_VOCAB_TO > 1 else 64, MASK_ID=3, BATCH_SIZE=32)

    def train_input(self) -> fdl.Config:
        source = super().train_input()
        if self.masked_by_task:
            source.mask_id = self.MASK_ID
            return source
        return fdl.Config(
            MaskedInput,
            source=source,
            vocab_size=self.vocab_size,
            mask_id=self.TEXT_MASK_ID if self.in_bytes else self.MASK_ID,
            mask_rate=self.MASK_RATE,
            random_rate=self.RANDOM_RATE,
            same_rate=self.SAME_RATE,
            seed=self.SEED,
        )

    def hold_out(self, config: fdl.Config, split: str) -> fdl.Config:
        if self.masked_by_task:
            return super().hold_out(config, split)
        config.source = super().hold_out(config.source, split)
        return config

    @property
    def masked_by_task(self) -> bool:
        """Returns whether a seqio task masks the tokens."""
        return self.DATA == "seqio" and self.SEQIO_OBJECTIVE == "encoder"
