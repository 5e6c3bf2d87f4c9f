"""The templates of Lingvo's GShard language models: dense, and with a mixture of experts in every other layer."""

from typing import Any, Literal

import fiddle as fdl

from layers.block import Chain
from layers.embedding import Embedding
from layers.errors import UsageError
from layers.feed_forward.experts import MixtureOfExperts
from layers.feed_forward.routing import SecondExpert
from layers.positions.relative_bias import RelativeBias
from layers.specs import P, Specs
from layers.weights.initializers import FanIn, FanInUniform, Normal
from registry.templates.decoder import DecoderLm
from registry.values import Positive, PositiveFloat


class GShardLm(DecoderLm):
    """Lingvo's dense LM (Xu et al. 2021, GSPMD).

    RMS norms, unscaled attention with an extra logit 0, a shared embedding of N(0, 1) with logits scaled by
    MODEL_DIM^-1/2, z-loss, and a loss that is a mean over all positions.

    Every matrix is split over both axes of the mesh; the batch over "data", and the model dimension of activations,
    heads, hidden units and vocabulary over "model". Positions are relative biases with gated GELU layers, or learned
    with ReLU layers. Synthetic packed rows are the training data: several segments per row, with positions that
    restart and a causal mask (the reference passes a mask of ones).

    The backward pass recomputes layers (REMAT = "full"): the reference sets it for repeated layers, and its stated
    speeds for other models imply it. Statistics of norms, scores and the loss are float32 (bfloat16 in the reference).
    A step is an update; the reference counts one step per micro-batch and one more per update.
    """

    NUM_LAYERS = 32
    MODEL_DIM = 8192
    NUM_HEADS = 128
    HEAD_DIM = 128
    FFN_DIM = 65536
    VOCAB_SIZE = 32000
    SEQ_LEN = 1024
    GATED = True
    POSITIONS: Literal["relative", "rotary", "learned", "sinusoidal", "none"] = "relative"
    NUM_BUCKETS: Positive = 32  # number of buckets of relative positions
    MAX_DISTANCE: Positive = 128  # distances of this size and more share a bucket
    ATTENTION_SCALE = 1.0
    EXTRA_LOGIT: float | None = 0.0  # logit of an extra key with value 0 in every softmax; None for no such key
    ATTENTION_SOFTCAP: PositiveFloat | None = None  # scores become ATTENTION_SOFTCAP * tanh(scores / ATTENTION_SOFTCAP)
    PADDED_HEADS: Positive | None = None  # pad heads of activations to this number if the mesh does not divide them
    PAD_VOCAB_TO: Positive = 1  # pad the rows of the embedding to a multiple of this
    CAUSAL: bool = True  # whether attention is causal

    OPTIMIZER = "adafactor"
    LEARNING_RATE = 0.01
    SCHEDULE = "inverse_sqrt"

    # Optimization
    TIMESCALE: Positive = 10_000  # updates before the learning rate falls as the inverse square root
    WARMUP_STEPS = 0
    BETA2 = 0.999  # of adamw; adafactor has 1 - t^-0.8
    ADAM_EPSILON = 1e-6
    WEIGHT_DECAY = 0.0
    CLIP_NORM = None
    Z_LOSS = 1e-4
    LOSS_NORMALIZER = "positions"

    DATA = "synthetic"
    NUM_STEPS = 2_000_000
    LOG_EVERY = 100
    EVAL_EVERY = None
    SAVE_EVERY = 500
    DTYPE = "bfloat16"
    REMAT = "full"

    # Placement
    WEIGHTS: Specs = Specs(
        embedding_vm=P(None, "model"),
        query_ma=P("data", "model"),
        key_ma=P("data", "model"),
        value_ma=P("data", "model"),
        attention_out_am=P("model", "data"),
        ffn_in_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
        norm_scale_m=P(None),
    )
    OPTIONAL_WEIGHTS: Specs = Specs(
        ffn_gate_mf=P("data", "model"),
        position_tm=P(None, "model"),
        relative_bias_nr=P(None, None),
    )
    ACTIVATIONS: Specs = Specs(
        tokens_bs=P("data", None),
        residual_bsm=P("data", None, "model"),
        query_bsnd=P("data", None, "model", None),
        key_bskd=P("data", None, "model", None),
        value_bskd=P("data", None, "model", None),
        mixed_bsnd=P("data", None, "model", None),
        hidden_bsf=P("data", None, "model"),
        logits_bsv=P("data", None, "model"),
    )

    @classmethod
    def Smoke(cls):
        padded = {"NUM_HEADS": 6, "PADDED_HEADS": 8} if cls.PADDED_HEADS else {}
        uneven = {"VOCAB_SIZE": 251, "PAD_VOCAB_TO": 8} if cls.PAD_VOCAB_TO > 1 else {"VOCAB_SIZE": 256}
        schedule = {"LEARNING_RATE": 1e-2, "TIMESCALE": 20} if cls.OPTIMIZER == "adamw" else {"LEARNING_RATE": 5e-2}
        return super().Smoke().derive(NUM_LAYERS=4, DTYPE="float32", **padded, **uneven, **schedule)

    def model(self) -> fdl.Config:
        config = super().model()
        config.embedding = self.layer(
            Embedding,
            vocab_size=self.vocab_size,
            table_rows=self.table_rows,
            model_dim=self.MODEL_DIM,
            initializer=fdl.Config(Normal, stddev=1.0),
            logits_scale=(self.MODEL_DIM * self.parametrization.multiple) ** -0.5,
            dtype=self.DTYPE,
        )
        config.mask_padding = True
        return config

    @classmethod
    def grows_with_width(cls) -> tuple[str, ...]:
        return *super().grows_with_width(), "PADDED_HEADS"

    @property
    def table_rows(self) -> int:
        """Number of stored rows of the embedding, padding included."""
        return -(-self.vocab_size // self.PAD_VOCAB_TO) * self.PAD_VOCAB_TO

    def position_embedding(self) -> fdl.Config | None:
        config = super().position_embedding()
        if self.POSITIONS == "learned" and config is not None:
            config.initializer = fdl.Config(Normal, stddev=1.0)
        return config

    def block(self) -> fdl.Config:
        config = super().block()
        config.mask_padding = True
        return config

    @property
    def branch_scale(self) -> float:
        return 1.0

    def mixer(self) -> fdl.Config:
        config = super().mixer()
        config.query_initializer = fdl.Config(FanIn, scale=self.head_dim**-0.5)
        config.extra_logit = self.EXTRA_LOGIT
        config.softcap = self.ATTENTION_SOFTCAP
        config.merged_heads = True
        config.padded_heads = self.PADDED_HEADS
        config.causal = self.CAUSAL
        if self.POSITIONS == "relative":
            config.relative_bias = self.layer(
                RelativeBias,
                num_heads=self.num_heads,
                num_buckets=self.NUM_BUCKETS,
                max_distance=self.MAX_DISTANCE,
                bidirectional=not self.CAUSAL,
                # Its fan-in grows with the heads, but under muP the deviation of a bias is constant over widths.
                initializer=fdl.Config(FanIn, scale=self.parametrization.multiple**0.5),
            )
        return config

    def ffn(self) -> fdl.Config:
        config = super().ffn()
        config.initializer = fdl.Config(FanInUniform)
        config.out_initializer = fdl.Config(FanInUniform)
        return config

    def optimizer(self) -> fdl.Config:
        config = super().optimizer()
        config.schedule.timescale = self.TIMESCALE
        return config


class MoeLm(GShardLm):
    """A GShard LM with a mixture of experts in place of every other feed-forward layer, the first included.

    See Lepikhin et al. 2021, GShard. With groups of about 1024 tokens, the matrix products that dispatch tokens to
    slots are cheap compared to the experts; their cost grows with the square of the group size.

    Groups of tokens and experts are both split over "data": an all-to-all exchanges tokens. The hidden dimension of
    experts is split over "model"; weights outside the experts are small and replicated along "data". To split experts
    over another axis, add an axis "expert" to the mesh and use it in the specs that start with `expert_`.
    """

    NUM_EXPERTS: Positive = 8  # number of experts per mixture
    EXPERT_DIM: Positive | None = None  # hidden units of one expert; None is FFN_DIM
    NUM_GROUPS: Positive = 8  # number of groups of tokens; each group has its own slots
    ROUTING: Literal["top2", "expert_choice"] = "top2"  # tokens choose two experts, or experts choose tokens
    SECOND_EXPERT: SecondExpert = "random"  # policy for the second expert of top2
    SECOND_THRESHOLD: float = 0.5  # a random second expert has probability gate / SECOND_THRESHOLD
    CAPACITY: int = 0  # minimum of slots per expert and group
    CAPACITY_FACTOR: float = 2.0  # slots of all experts per token of a group; 0 uses CAPACITY alone
    LEGACY_GATES: bool = True  # normalize top-2 gates before tokens are dropped, not after
    GATED_EXPERTS: bool = False  # experts are gated GELU layers, else ReLU layers
    AUX_LOSS: float = 0.01  # factor of the load-balancing loss
    ROUTER_Z_LOSS: float = 0.0  # factor of the mean squared log-sum of router logits
    JITTER: float = 0.0  # half-width of the multiplicative noise on router inputs

    # Placement
    WEIGHTS: Specs = GShardLm.WEIGHTS | Specs(
        query_ma=P(None, "model"),
        key_ma=P(None, "model"),
        value_ma=P(None, "model"),
        attention_out_am=P("model", None),
        ffn_in_mf=P(None, "model"),
        ffn_out_fm=P("model", None),
        router_me=P(None, None),
        expert_in_emf=P("data", None, "model"),
        expert_out_efm=P("data", "model", None),
    )
    OPTIONAL_WEIGHTS: Specs = GShardLm.OPTIONAL_WEIGHTS | Specs(
        ffn_gate_mf=P(None, "model"), expert_gate_emf=P("data", None, "model")
    )
    ACTIVATIONS: Specs = GShardLm.ACTIVATIONS | Specs(
        group_gsm=P("data", None, None),
        combine_gsec=P("data", None, None, None),
        dispatched_gecm=P("data", None, None, None),
        expert_in_egcm=P("data", None, None, None),
        expert_hidden_egcf=P("data", None, None, "model"),
        expert_out_egcm=P("data", None, None, None),
        returned_gecm=P("data", None, None, None),
    )

    @classmethod
    def Smoke(cls):
        experts: dict[str, Any] = {"NUM_EXPERTS": 8, "EXPERT_DIM": 32, "NUM_GROUPS": 8}
        return super().Smoke().derive(**experts)

    @classmethod
    def grows_with_width(cls) -> tuple[str, ...]:
        return *super().grows_with_width(), "EXPERT_DIM"

    def model(self) -> fdl.Config:
        config = super().model()
        if self.NUM_LAYERS % 2:
            raise UsageError(f"NUM_LAYERS must be even, because every other layer has experts (got {self.NUM_LAYERS}).")
        config.stack.block = fdl.Config(Chain, blocks=(self.expert_block(), self.block()))
        config.stack.num_layers = self.NUM_LAYERS // 2
        return config

    def expert_block(self) -> fdl.Config:
        """Returns the config of a layer with experts."""
        config = self.block()
        config.ffn = self.experts()
        return config

    def experts(self) -> fdl.Config:
        """Returns the config of the mixture of experts."""
        for rows, length in self.update_shapes():
            tokens = rows * length // max(1, self.GRADIENT_ACCUMULATION)
            if tokens % self.NUM_GROUPS:
                raise UsageError(
                    f"NUM_GROUPS must divide the {tokens} tokens of a (micro-)batch with rows of {length} (got "
                    f"{self.NUM_GROUPS})."
                )
        return self.layer(
            MixtureOfExperts,
            activations=self.ACTIVATIONS.of(MixtureOfExperts),
            model_dim=self.MODEL_DIM,
            hidden_dim=self.FFN_DIM if self.EXPERT_DIM is None else self.EXPERT_DIM,
            num_experts=self.NUM_EXPERTS,
            initializer=fdl.Config(FanInUniform),
            out_initializer=fdl.Config(FanInUniform),
            num_groups=self.NUM_GROUPS,
            capacity=self.CAPACITY,
            capacity_factor=self.CAPACITY_FACTOR,
            routing=self.ROUTING,
            second_expert=self.SECOND_EXPERT,
            second_threshold=self.SECOND_THRESHOLD,
            legacy_gates=self.LEGACY_GATES,
            activation="gelu_tanh" if self.GATED_EXPERTS else "relu",
            gated=self.GATED_EXPERTS,
            aux_loss=self.AUX_LOSS,
            router_z_loss=self.ROUTER_Z_LOSS,
            jitter=self.JITTER,
            dtype=self.DTYPE,
        )
