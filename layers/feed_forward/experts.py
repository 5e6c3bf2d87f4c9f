"""Mixture-of-experts layer: many feed-forward experts, with each token routed to a few of them."""

import math
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.auxiliary import OVERHEAD, add_loss, add_metric
from layers.collectives import all_reduce_unsharded, all_to_all, manual_axis, manual_parts
from layers.errors import UsageError
from layers.feed_forward.activations import activation
from layers.feed_forward.routing import (
    Gates,
    Routing,
    SecondExpert,
    auto_capacity,
    expert_choice_routing,
    top2_routing,
    top_k_routing,
)
from layers.remat import named
from layers.specs import P, Specs, axes_of, constrain
from layers.weights.initializers import Initializer
from layers.weights.weight import weight

LARGEST_GROUP = 1024  # tokens of a group with slots for all of them


class MixtureOfExperts(nn.Module):
    """Routes tokens to experts in groups, each with a fixed number of slots (Lepikhin et al. 2021, GShard).

    If groups are split over one mesh axis and experts over the same or another, the change from `dispatched_gecm` to
    `expert_in_egcm` is the all-to-all that sends tokens to their experts, and `expert_out_egcm` to `returned_gecm` the
    one that sends them back.

    If the computation handles that axis manually (see tasks.zero), a device has its own groups and, of weights that
    the axis splits by experts, its own experts: `dispatched_gecm` and `returned_gecm` are exchanged explicitly.
    """

    SPECS: ClassVar[tuple[str, ...]] = (
        "router_me",
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
    # Groups that a batch is cut into; tokens compete for slots only within their group. With slots for all tokens, the
    # least number: groups are cut further, because the memory of slots grows with the square of their size.
    num_groups: int = 1
    capacity: int = 0  # least number of slots per expert and group
    # Slots of all experts per token of the group; 0 uses `capacity` alone, None has a slot for every token.
    capacity_factor: float | None = 2.0
    routing: Literal["top2", "top_k", "expert_choice"] = "top2"
    experts_per_token: int = 2  # of top_k routing
    gates: Gates = "top_k_then_softmax"  # of top_k routing
    second_expert: SecondExpert = "all"  # of top-2 routing; "none" is Switch routing
    second_threshold: float = 0.0  # of second_expert = "random"
    legacy_gates: bool = True  # normalize top-2 gates to sum 1 before tokens are dropped, not after
    activation: str = "relu"  # a name in layers.feed_forward.activations
    gated: bool = False
    aux_loss: float = 0.01  # factor of the load-balancing loss
    router_z_loss: float = 0.0  # factor of the mean squared log-sum of router logits (Zoph et al. 2022, equation 5)
    jitter: float = 0.0  # in training the router's input is multiplied by uniform numbers from 1 - jitter to 1 + jitter
    dtype: str = "float32"  # of the computation; the router's softmax is always float32
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "b s m"], segment_ids: Int[Array, "b s"] | None = None) -> Float[Array, "b s m"]:
        """Applies the experts. Padding (segment id 0) is routed to no expert; a token without an expert gives zero.

        If `num_groups` does not divide the number of tokens, as in a decoding step, the number of groups is the
        greatest common divisor of both.

        Raises:
          UsageError: a number of groups, a capacity or a jitter out of range; weights of which only some split experts;
            a number of groups that is not a multiple of the devices of a manual axis.
        """
        if self.num_groups < 1 or self.capacity < 0 or (self.capacity_factor or 0) < 0 or not 0 <= self.jitter < 1:
            raise UsageError(
                f"num_groups must be at least 1 (got {self.num_groups}), capacity at least 0 (got {self.capacity}), "
                f"capacity_factor at least 0 (got {self.capacity_factor}), jitter at least 0 and below 1 "
                f"(got {self.jitter})."
            )
        tokens = math.prod(x.shape[:2])
        groups = self._groups(tokens)
        x_gsm = constrain(x.reshape(groups, tokens // groups, -1), self.activations, "group_gsm")
        real_gs = jnp.ones(x_gsm.shape[:2], bool)
        if segment_ids is not None:
            real_gs = (segment_ids != 0).reshape(real_gs.shape)
        routing = self._route(x_gsm, real_gs)
        combine_gsec = constrain(routing.combine_gsec.astype(self.dtype), self.activations, "combine_gsec")
        with jax.named_scope(OVERHEAD):
            dispatched = jnp.einsum("gsec,gsm->gecm", (combine_gsec != 0).astype(self.dtype), x_gsm)
        dispatched = constrain(dispatched, self.activations, "dispatched_gecm")
        axis = self._expert_axis()
        if axis is not None:
            dispatched = all_to_all(dispatched, axis, 1, 0, self._spec("dispatched_gecm"))
        y_egcm = self._experts(constrain(dispatched.swapaxes(0, 1), self.activations, "expert_in_egcm"))
        returned = y_egcm.swapaxes(0, 1)
        if axis is not None:
            returned = all_to_all(returned, axis, 0, 1, self._spec("returned_gecm"))
        returned = constrain(returned, self.activations, "returned_gecm")
        with jax.named_scope(OVERHEAD):
            y_gsm = jnp.einsum("gsec,gecm->gsm", combine_gsec, returned)
        return constrain(y_gsm, self.activations, "group_gsm").reshape(x.shape)

    def _groups(self, tokens: int) -> int:
        """Returns the number of groups that `tokens` are cut into: a divisor of it, a multiple of the own groups if
        these divide it. With slots for all tokens, groups have at most LARGEST_GROUP tokens."""
        groups = math.gcd(self._own_groups(), tokens)
        if self.capacity_factor is not None:
            return groups
        size = tokens // groups
        return tokens // next(part for part in range(min(size, LARGEST_GROUP), 0, -1) if size % part == 0)

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

    def _route(self, x_gsm, real_gs) -> Routing:
        router_x = x_gsm.astype(jnp.float32)
        rng = self.make_rng("dropout") if self.has_rng("dropout") else None
        if self.jitter and rng is not None:
            low, high = 1 - self.jitter, 1 + self.jitter
            router_x *= jax.random.uniform(jax.random.fold_in(rng, 1), router_x.shape, minval=low, maxval=high)
        shape = (self.model_dim, self.num_experts)
        w_me = weight(self, "router_me", shape, init=self.initializer, role="hidden", dtype="float32")
        logits_gse = jnp.einsum("gsm,me->gse", router_x, w_me.astype(jnp.float32))
        capacity = self._capacity(x_gsm.shape[1])
        if self.routing == "expert_choice":
            routing = expert_choice_routing(logits_gse, real_gs, capacity)
        elif self.routing == "top_k":
            routing = top_k_routing(logits_gse, real_gs, capacity, self.experts_per_token, self.gates)
        elif self.routing == "top2":
            options = (self.second_expert, self.second_threshold, self.legacy_gates)
            routing = top2_routing(logits_gse, real_gs, capacity, *options, rng)
        else:
            raise UsageError(f"Unknown routing '{self.routing}'. Choose top2, top_k or expert_choice.")
        squared = jnp.square(jax.nn.logsumexp(logits_gse, axis=-1)) * real_gs
        z_loss = all_reduce_unsharded(jnp.sum(squared)) / jnp.maximum(all_reduce_unsharded(jnp.sum(real_gs)), 1)
        add_loss(self, "router", self.aux_loss * routing.aux_loss + self.router_z_loss * z_loss)
        add_metric(self, "router_aux_loss", routing.aux_loss)
        add_metric(self, "router_z_loss", z_loss)
        add_metric(self, "router_dropped", routing.dropped)
        add_metric(self, "router_load_max", routing.load_max)
        return routing

    def _capacity(self, tokens: int) -> int:
        """Returns the number of slots per expert and group."""
        if self.capacity_factor is None:
            return tokens
        if self.capacity_factor:
            return auto_capacity(tokens, self.num_experts, self.capacity_factor, self.capacity)
        if self.capacity < 1:
            raise UsageError(f"capacity must be at least 1 (got {self.capacity}). Set it, or set capacity_factor.")
        return self.capacity

    def _experts(self, x_egcm: Float[Array, "e g c m"]) -> Float[Array, "e g c m"]:
        experts = x_egcm.shape[0]  # all, or the local ones of a manual axis
        into, out = (experts, self.model_dim, self.hidden_dim), (experts, self.hidden_dim, self.model_dim)
        act = activation(self.activation)

        def dense_in(name: str) -> jax.Array:
            w_emf = weight(self, name, into, init=self.initializer, role="hidden", fan_in=self.model_dim)
            h = jnp.einsum("egcm,emf->egcf", x_egcm, w_emf.astype(self.dtype))
            return named(constrain(h, self.activations, "expert_hidden_egcf"), "expert_hidden_egcf")

        h = dense_in("expert_in_emf")
        h = act(dense_in("expert_gate_emf")) * h if self.gated else act(h)
        w_efm = weight(self, "expert_out_efm", out, init=self.out_initializer, role="hidden", fan_in=self.hidden_dim)
        y = jnp.einsum("egcf,efm->egcm", h, w_efm.astype(self.dtype))
        return constrain(y, self.activations, "expert_out_egcm")
