"""Mixture-of-experts layer: many feed-forward experts, with each token routed to a few of them."""

import math
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from layers.auxiliary import OVERHEAD, UPDATES, add_loss, add_metric, add_update
from layers.collectives import all_reduce_unsharded, all_to_all, manual_axis, manual_parts
from layers.errors import UsageError
from layers.feed_forward.activations import activation
from layers.feed_forward.dropless import Matrices, Split, apply_experts
from layers.feed_forward.routing import Choices, Gates, SecondExpert, top2_choices, top_k_choices
from layers.feed_forward.slots import Slots, auto_capacity, expert_choice_slots, in_slots
from layers.positions.segments import SegmentIds
from layers.remat import named
from layers.specs import P, Specs, axes_of, constrain
from layers.weights.initializers import Constant, Initializer
from layers.weights.products import product
from layers.weights.weight import weight

ROUTER_BIAS = "router_bias"  # collection of the biases that even out the load: state, not trained by gradient


class RouterBiasUpdate(struct.PyTreeNode):
    """Choices of each expert in a batch, which update the bias of its score. Those of parts of a batch add up."""

    load_e: Float[Array, "*layers e"]
    rate: float = struct.field(pytree_node=False)

    def __add__(self, other: "RouterBiasUpdate") -> "RouterBiasUpdate":
        return self.replace(load_e=self.load_e + other.load_e)

    def apply(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the bias after the batch (Wang et al. 2024, Auxiliary-Loss-Free Load Balancing, algorithm 1)."""
        error_e = jnp.mean(self.load_e, axis=-1, keepdims=True) - self.load_e
        return {"router_bias_e": weights["router_bias_e"] + self.rate * jnp.sign(error_e)}


class MixtureOfExperts(nn.Module):
    """Routes tokens to experts, with a fixed number of slots for each group of tokens, or without slots.

    With slots (Lepikhin et al. 2021, GShard): if groups are split over one mesh axis and experts over the same or
    another, the change from `dispatched_gecm` to `expert_in_egcm` is the all-to-all that sends tokens to their experts,
    and `expert_out_egcm` to `returned_gecm` the one that sends them back. If the computation handles that axis manually
    (see tasks.zero), a device has its own groups and, of weights that the axis splits by experts, its own experts:
    `dispatched_gecm` and `returned_gecm` are exchanged explicitly.

    Without slots (`capacity_factor` None), experts multiply all tokens that choose them (layers.feed_forward.dropless).
    Groups are then those of the auxiliary loss alone, except for expert choice, which has slots for all tokens.
    """

    SPECS: ClassVar[tuple[str, ...]] = (
        "router_me",
        "router_bias_e",
        "expert_in_emf",
        "expert_gate_emf",
        "expert_out_efm",
        "group_gsm",
        "combine_gsec",
        "dispatched_gecm",
        "expert_in_egcm",
        "expert_hidden_egcf",
        "expert_out_egcm",
        "returned_gecm",
    )

    specs: Specs
    activations: Specs
    model_dim: int
    hidden_dim: int  # of one expert
    num_experts: int
    initializer: Initializer  # of the router and the matrices into the hidden layer
    out_initializer: Initializer  # of the matrices out of the hidden layer
    # Groups that a batch is cut into; tokens compete for slots only within their group.
    num_groups: int = 1
    capacity: int = 0  # least number of slots per expert and group
    # Slots of all experts per token of the group; 0 uses `capacity` alone, None has no slots.
    capacity_factor: float | None = 2.0
    # Without slots: rows that a device can receive from those that share its experts, divided by their mean. Choices
    # that find no place are dropped. None: all that they can send.
    receive_factor: float | None = None
    routing: Literal["top2", "top_k", "expert_choice"] = "top2"
    experts_per_token: int = 2  # of top_k routing
    gates: Gates = "top_k_then_softmax"  # of top_k routing
    gate_scale: float = 1.0  # of top_k routing: factor of the gates
    bias_rate: float = 0.0  # of top_k routing: change per update of the biases that even out the load; 0: no biases
    second_expert: SecondExpert = "all"  # of top-2 routing; "none" is Switch routing
    second_threshold: float = 0.0  # of second_expert = "random"
    legacy_gates: bool = True  # normalize top-2 gates to sum 1 before tokens are dropped, not after
    shared: nn.Module | None = None  # a feed-forward layer that every token has in addition to its experts
    activation: str = "relu"  # a name in layers.feed_forward.activations
    gated: bool = False
    aux_loss: float = 0.01  # factor of the load-balancing loss
    router_z_loss: float = 0.0  # factor of the mean squared log-sum of router logits (Zoph et al. 2022, equation 5)
    jitter: float = 0.0  # in training the router's input is multiplied by uniform numbers from 1 - jitter to 1 + jitter
    dtype: str = "float32"  # of the computation; the router's scores are always float32
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "b s m"], segment_ids: SegmentIds = None) -> Float[Array, "b s m"]:
        """Applies the experts. Padding (segment id 0) is routed to no expert; a token without an expert gives zero.

        If `num_groups` does not divide the number of tokens, as in a decoding step, the number of groups is the
        greatest common divisor of both.

        Raises:
          UsageError: a number of groups, a capacity, a factor or a jitter out of range; weights of which only some
            split experts; a number of groups that is not a multiple of the devices of a manual axis.
        """
        self._check()
        tokens = math.prod(x.shape[:2])
        groups = math.gcd(self._own_groups(), tokens)
        x_gsm = constrain(x.reshape(groups, tokens // groups, -1), self.activations, "group_gsm")
        real_gs = jnp.ones(x_gsm.shape[:2], bool)
        if segment_ids is not None:
            real_gs = (segment_ids != 0).reshape(real_gs.shape)
        rng = self.make_rng("dropout") if self.has_rng("dropout") else None
        logits_gse = self._router_logits(x_gsm, rng)
        if self.routing == "expert_choice":
            slots, load_e = expert_choice_slots(logits_gse, real_gs, self._capacity(x_gsm.shape[1]))
            self._report(logits_gse, real_gs, jnp.float32(0), load_e, slots.dropped)
            y_gsm = self._with_slots(x_gsm, slots)
        else:
            choices = self._choose(logits_gse, real_gs, rng)
            if self.capacity_factor is None:
                y_gsm, dropped = self._without_slots(x_gsm, choices)
            else:
                slots = in_slots(choices, self._capacity(x_gsm.shape[1]))
                y_gsm, dropped = self._with_slots(x_gsm, slots), slots.dropped
            self._report(logits_gse, real_gs, choices.aux_loss, choices.load_e, dropped)
        y = constrain(y_gsm, self.activations, "group_gsm").reshape(x.shape)
        return y if self.shared is None else y + self.shared(x, segment_ids)

    def decoding_caveat(self) -> str | None:
        """Returns how decoding differs from a pass over complete rows; None if a token's output depends on it alone."""
        if self.routing == "expert_choice":
            return (
                "Experts choose their tokens (ROUTING = expert_choice), and later tokens change the choice. Decoding "
                "has not read them, so its log-probabilities differ from those of complete rows."
            )
        if self.capacity_factor is None:
            return None
        slots = f"CAPACITY_FACTOR = {self.capacity_factor:g}" if self.capacity_factor else f"CAPACITY = {self.capacity}"
        return (
            f"Experts have slots ({slots}). Tokens without a slot skip the expert; in decoding fewer do than in "
            f"complete rows, so its log-probabilities can differ from those of training. With CAPACITY_FACTOR=none "
            f"they do not."
        )

    def _check(self) -> None:
        if self.num_groups < 1 or self.capacity < 0 or (self.capacity_factor or 0) < 0 or not 0 <= self.jitter < 1:
            raise UsageError(
                f"num_groups must be at least 1 (got {self.num_groups}), capacity at least 0 (got {self.capacity}), "
                f"capacity_factor at least 0 (got {self.capacity_factor}), jitter at least 0 and below 1 "
                f"(got {self.jitter})."
            )
        if self.receive_factor is not None and self.receive_factor < 1:
            raise UsageError(f"receive_factor must be at least 1, or None (got {self.receive_factor}).")
        if self.bias_rate and self.routing != "top_k":
            raise UsageError(f"bias_rate = {self.bias_rate} needs routing top_k (got {self.routing}).")

    def _own_groups(self) -> int:
        """Returns the number of groups of the local rows: all groups, or those of one device of a manual axis."""
        parts = manual_parts()
        if self.num_groups % parts:
            raise UsageError(
                f"The {parts} devices of mesh axis '{manual_axis()}', which work on their own rows, must divide "
                f"num_groups = {self.num_groups}. Choose another NUM_GROUPS or ZERO_STAGE=none."
            )
        return self.num_groups // parts

    def _expert_axis(self) -> str | None:
        """Returns the manual axis if it splits experts; None otherwise."""
        names = ("expert_in_emf", "expert_out_efm", *(("expert_gate_emf",) if self.gated else ()))
        axis = manual_axis()
        split = [axis in axes_of(self.specs[name][0]) for name in names]
        if axis is None or not any(split):
            return None
        if not all(split):
            raise UsageError(
                f"'{axis}' splits the experts of WEIGHTS.{names[split.index(True)]}, but not those of WEIGHTS."
                f"{names[split.index(False)]}. Split the first dimension of both, or of neither."
            )
        return axis

    def _spec(self, key: str) -> P:
        return self.activations.get(key, P(None, None, None, None))

    def _router_logits(self, x_gsm: Float[Array, "g s m"], rng: jax.Array | None) -> Float[Array, "g s e"]:
        router_x = x_gsm.astype(jnp.float32)
        if self.jitter and rng is not None:
            low, high = 1 - self.jitter, 1 + self.jitter
            router_x *= jax.random.uniform(jax.random.fold_in(rng, 1), router_x.shape, minval=low, maxval=high)
        shape = (self.model_dim, self.num_experts)
        w_me = weight(self, "router_me", shape, init=self.initializer, role="hidden", dtype="float32")
        return product(router_x, w_me.astype(jnp.float32))

    def _choose(self, logits_gse: Float[Array, "g s e"], real_gs: Bool[Array, "g s"], rng: jax.Array | None) -> Choices:
        if self.routing == "top2":
            options = (self.second_expert, self.second_threshold, self.legacy_gates)
            return top2_choices(logits_gse, real_gs, *options, rng)
        if self.routing != "top_k":
            raise UsageError(f"Unknown routing '{self.routing}'. Choose top2, top_k or expert_choice.")
        bias_e = None
        if self.bias_rate:
            shape: Any = {"shape": (self.num_experts,), "init": Constant(), "role": "state"}
            bias_e = weight(self, "router_bias_e", **shape, collection=ROUTER_BIAS)
        choices = top_k_choices(logits_gse, real_gs, self.experts_per_token, self.gates, bias_e)
        if self.bias_rate and self.is_mutable_collection(UPDATES):
            add_update(self, ROUTER_BIAS, RouterBiasUpdate(choices.load_e, self.bias_rate))
        return choices.replace(gate_gsk=self.gate_scale * choices.gate_gsk)

    def _report(self, logits_gse, real_gs, aux_loss, load_e, dropped) -> None:
        squared = jnp.square(jax.nn.logsumexp(logits_gse, axis=-1)) * real_gs
        z_loss = all_reduce_unsharded(jnp.sum(squared)) / jnp.maximum(all_reduce_unsharded(jnp.sum(real_gs)), 1)
        add_loss(self, "router", self.aux_loss * aux_loss + self.router_z_loss * z_loss)
        add_metric(self, "router_aux_loss", aux_loss)
        add_metric(self, "router_z_loss", z_loss)
        add_metric(self, "router_dropped", dropped)
        load_max = jnp.max(load_e) / jnp.maximum(jnp.mean(load_e), 1e-9)
        add_metric(self, "router_load_max", load_max, by_layer=True)

    def _capacity(self, tokens: int) -> int:
        """Returns the number of slots per expert and group."""
        if self.capacity_factor is None:
            return tokens
        if self.capacity_factor:
            return auto_capacity(tokens, self.num_experts, self.capacity_factor, self.capacity)
        if self.capacity < 1:
            raise UsageError(f"capacity must be at least 1 (got {self.capacity}). Set it, or set capacity_factor.")
        return self.capacity

    def _matrices(self, experts: int) -> Matrices:
        """Returns the matrices of `experts` experts: all, or the local ones of a manual axis."""
        into, out = (experts, self.model_dim, self.hidden_dim), (experts, self.hidden_dim, self.model_dim)
        dense_in: Any = {"shape": into, "init": self.initializer, "role": "hidden", "fan_in": self.model_dim}
        names = ("expert_in_emf", "expert_gate_emf") if self.gated else ("expert_in_emf",)
        w_emf, *gate_emf = (weight(self, name, **dense_in).astype(self.dtype) for name in names)
        w_efm = weight(self, "expert_out_efm", out, init=self.out_initializer, role="hidden", fan_in=self.hidden_dim)
        return Matrices(w_emf, gate_emf[0] if gate_emf else None, w_efm.astype(self.dtype))

    def _without_slots(self, x_gsm: Float[Array, "g s m"], choices: Choices) -> tuple[Array, Array]:
        """Returns the outputs, and the share of choices that were dropped."""
        parts = 1 if self._expert_axis() is None else manual_parts()
        split = Split.of(self.specs, self.activations, x_gsm.shape, self.num_experts, self.hidden_dim)
        expert_gsk = jnp.where(choices.taken_gsk, choices.expert_gsk, self.num_experts)
        output = apply_experts(
            split,
            self.receive_factor,
            activation(self.activation),
            x_gsm,
            expert_gsk,
            choices.gates(choices.taken_gsk),
            self._matrices(self.num_experts // parts),
        )
        computed = all_reduce_unsharded(jnp.sum(output.computed).astype(jnp.float32))
        return output.y_gsm, 1 - computed / jnp.maximum(jnp.sum(choices.load_e), 1)

    def _with_slots(self, x_gsm: Float[Array, "g s m"], slots: Slots) -> Float[Array, "g s m"]:
        combine_gsec = constrain(slots.combine_gsec.astype(self.dtype), self.activations, "combine_gsec")
        with jax.named_scope(OVERHEAD):
            dispatched = jnp.einsum("gsec,gsm->gecm", (combine_gsec != 0).astype(self.dtype), x_gsm)
        dispatched = constrain(dispatched, self.activations, "dispatched_gecm")
        axis = self._expert_axis()
        if axis is not None:
            dispatched = all_to_all(dispatched, axis, 1, 0, self._spec("dispatched_gecm"))
        y_egcm = self._in_slots(constrain(dispatched.swapaxes(0, 1), self.activations, "expert_in_egcm"))
        returned = y_egcm.swapaxes(0, 1)
        if axis is not None:
            returned = all_to_all(returned, axis, 0, 1, self._spec("returned_gecm"))
        returned = constrain(returned, self.activations, "returned_gecm")
        with jax.named_scope(OVERHEAD):
            return jnp.einsum("gsec,gecm->gsm", combine_gsec, returned)

    def _in_slots(self, x_egcm: Float[Array, "e g c m"]) -> Float[Array, "e g c m"]:
        act, matrices = activation(self.activation), self._matrices(x_egcm.shape[0])

        def dense_in(w_emf: jax.Array) -> jax.Array:
            h = jnp.einsum("egcm,emf->egcf", x_egcm, w_emf)
            return named(constrain(h, self.activations, "expert_hidden_egcf"), "expert_hidden_egcf")

        h = dense_in(matrices.into_emf)
        h = act(h) if matrices.gate_emf is None else act(dense_in(matrices.gate_emf)) * h
        y = jnp.einsum("egcf,efm->egcm", h, matrices.out_efm)
        return constrain(y, self.activations, "expert_out_egcm")
