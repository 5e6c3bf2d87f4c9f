"""The knobs of feed-forward layers, and their kinds: dense, gated, experts, gated experts, none."""

from typing import Any, Literal

import fiddle as fdl

from layers.errors import UsageError
from layers.feed_forward.dense import FeedForward
from layers.feed_forward.experts import MixtureOfExperts
from layers.feed_forward.routing import Gates, SecondExpert
from registry.templates.parts import feed_forward
from registry.templates.vq import VQKnobs
from registry.values import PerLayer, Positive, PositiveFloat


class FeedForwardKnobs(VQKnobs):
    """Hidden layers and mixtures of experts.

    Mixtures of experts follow Lepikhin et al. 2021, GShard. With groups of about 1024 tokens, the matrix products that
    dispatch tokens to slots are cheap compared to the experts; their cost grows with the square of the group size.
    """

    # Model
    FFN: PerLayer[str] = "dense"  # dense, gated (GLU), experts, gated_experts, none, or a user's
    FFN_DIM: Positive | None = None  # hidden units; None is FFN_MULTIPLE * MODEL_DIM, rounded down
    FFN_MULTIPLE: PositiveFloat = 4.0  # hidden units over MODEL_DIM, if FFN_DIM is None
    ACTIVATION: str = "gelu_tanh"  # relu, squared_relu, gelu_tanh, gelu_erf or silu
    HIDDEN_DROPOUT: float | None = None  # dropout rate on the hidden layer; None is DROPOUT
    NUM_EXPERTS: Positive = 8  # number of experts per mixture
    EXPERT_DIM: Positive | None = None  # hidden units of one expert; None is as many as of a dense layer
    EXPERT_ACTIVATION: str | None = None  # as ACTIVATION, of experts; None is ACTIVATION
    NUM_GROUPS: Positive = 8  # number of groups of tokens; each group has its own slots
    ROUTING: Literal["top2", "top_k", "expert_choice"] = "top2"  # tokens choose two or k experts; experts choose tokens
    EXPERTS_PER_TOKEN: Positive = 2  # experts that a token chooses, k of top_k
    GATES: Gates = "top_k_then_softmax"  # weights of the outputs of top_k: see layers.feed_forward.routing
    GATE_SCALE: PositiveFloat = 1.0  # factor of the weights of the outputs of top_k
    SHARED_EXPERTS: int = 0  # experts that every token has, in addition to those it chooses
    BIAS_RATE: float = 0.0  # top_k: change per update of biases on the scores that even out the load; 0: no biases
    SECOND_EXPERT: SecondExpert = "random"  # policy for the second expert of top2
    SECOND_THRESHOLD: float = 0.5  # a random second expert has probability gate / SECOND_THRESHOLD
    CAPACITY: int = 0  # minimum of slots per expert and group
    CAPACITY_FACTOR: float | None = 2.0  # slots of all experts per token of a group; 0: CAPACITY; None: no slots
    RECEIVE_FACTOR: float | None = None  # without slots: rows a device can receive over their mean; None: all
    LEGACY_GATES: bool = True  # normalize top-2 gates before tokens are dropped, not after
    AUX_LOSS: float = 0.01  # factor of the load-balancing loss
    ROUTER_Z_LOSS: float = 0.0  # factor of the mean squared log-sum of router logits
    JITTER: float = 0.0  # half-width of the multiplicative noise on router inputs

    # Optimization
    FFN_INIT: Literal["normal", "uniform"] = "normal"  # distribution of the initial matrices of feed-forward layers

    @property
    def hidden_dim(self) -> int:
        """Number of hidden units of a feed-forward layer."""
        return int(self.FFN_MULTIPLE * self.MODEL_DIM) if self.FFN_DIM is None else self.FFN_DIM

    @feed_forward("none")
    def no_feed_forward(self) -> None:
        """Returns None: the layer is its mixer alone."""

    @feed_forward("dense")
    def dense(self, *, gated: bool = False, hidden_dim: int | None = None, activation: str | None = None) -> fdl.Config:
        """Returns the config of a feed-forward layer, by default of `hidden_dim` units with ACTIVATION."""
        uniform = self.FFN_INIT == "uniform"
        return self.layer(
            FeedForward,
            model_dim=self.MODEL_DIM,
            hidden_dim=hidden_dim or self.hidden_dim,
            initializer=self.initializer(uniform=uniform),
            out_initializer=self.branch_initializer(uniform=uniform),
            activation=activation or self.ACTIVATION,
            gated=gated,
            use_bias="ffn" in self.BIASES,
            dropout_rate=self.DROPOUT if self.HIDDEN_DROPOUT is None else self.HIDDEN_DROPOUT,
            dtype=self.DTYPE,
        )

    @feed_forward("gated")
    def gated(self) -> fdl.Config:
        """Returns the config of a gated feed-forward layer."""
        return self.dense(gated=True)

    @feed_forward("experts")
    def experts(self, *, gated: bool = False) -> fdl.Config:
        """Returns the config of a mixture of experts."""
        for rows, length in self.update_shapes():
            tokens = rows * length // max(1, self.GRADIENT_ACCUMULATION) // self.microbatches
            if tokens % self.NUM_GROUPS:
                raise UsageError(
                    f"NUM_GROUPS must divide the {tokens} tokens of a (micro-)batch with rows of {length} (got "
                    f"{self.NUM_GROUPS}). Change it, BATCH_SIZE or SEQ_LEN."
                )
        uniform, second = self.FFN_INIT == "uniform", dict[str, Any]()
        if self.ROUTING == "top2":
            second = {"second_expert": self.SECOND_EXPERT, "legacy_gates": self.LEGACY_GATES}
            if self.SECOND_EXPERT == "random":
                second["second_threshold"] = self.SECOND_THRESHOLD
        if self.ROUTING == "top_k":
            if self.EXPERTS_PER_TOKEN > self.NUM_EXPERTS:
                self.refuse(
                    "EXPERTS_PER_TOKEN", "NUM_EXPERTS", "A token chooses different experts: change one of them."
                )
            second = {"experts_per_token": self.EXPERTS_PER_TOKEN, "gates": self.GATES}
            second |= {"gate_scale": self.GATE_SCALE, "bias_rate": self.BIAS_RATE}
        elif self.BIAS_RATE:
            self.refuse("BIAS_RATE", "ROUTING", "Set ROUTING=top_k or BIAS_RATE=0.")
        if self.CAPACITY_FACTOR is None:
            second |= {"receive_factor": self.RECEIVE_FACTOR}
        expert_dim = self.hidden_dim if self.EXPERT_DIM is None else self.EXPERT_DIM
        act = self.ACTIVATION if self.EXPERT_ACTIVATION is None else self.EXPERT_ACTIVATION
        if self.SHARED_EXPERTS:
            hidden_dim = self.SHARED_EXPERTS * expert_dim
            second |= {"shared": self.dense(gated=gated, hidden_dim=hidden_dim, activation=act)}
        return self.layer(
            MixtureOfExperts,
            model_dim=self.MODEL_DIM,
            hidden_dim=expert_dim,
            num_experts=self.NUM_EXPERTS,
            initializer=self.initializer(uniform=uniform),
            out_initializer=self.branch_initializer(uniform=uniform),
            num_groups=self.NUM_GROUPS,
            capacity=self.CAPACITY,
            capacity_factor=self.CAPACITY_FACTOR,
            routing=self.ROUTING,
            activation=act,
            gated=gated,
            aux_loss=self.AUX_LOSS,
            router_z_loss=self.ROUTER_Z_LOSS,
            jitter=self.JITTER,
            dtype=self.DTYPE,
            **second,
        )

    @feed_forward("gated_experts")
    def gated_experts(self) -> fdl.Config:
        """Returns the config of a mixture of gated experts."""
        return self.experts(gated=True)
