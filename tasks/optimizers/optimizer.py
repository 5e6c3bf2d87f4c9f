"""Optimizers: optax transformations built from the weight table."""

import dataclasses
from typing import Any, Literal

import jax
import optax

from layers.errors import UsageError
from layers.specs import P
from tasks.optimizers.adafactor import factored_dims, scale_by_adafactor
from tasks.optimizers.precision import keep_master, store_moments
from tasks.optimizers.schedules import Schedule
from tasks.parametrization import Parametrization
from tasks.weight_table import WeightRow, WeightTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
    """Gradient clipping before the optimizer; None turns a limit off, and those that are set apply in this order."""

    global_norm: float | None = None  # scale all gradients together to at most this norm (Pascanu et al. 2013)
    block_rms: float | None = None  # scale each weight's gradient to at most this root mean square, stacks as one
    value: float | None = None  # cut each element to [-value, value]

    def __post_init__(self):
        for name, limit in dataclasses.asdict(self).items():
            if limit is not None and not limit > 0:
                raise UsageError(f"clipping.{name} must be above 0 (got {limit}). Set none for no limit.")

    def build(self) -> list[optax.GradientTransformation]:
        """Returns the optax transformations."""
        makers = {
            optax.clip_by_global_norm: self.global_norm,
            optax.clip_by_block_rms: self.block_rms,
            optax.clip: self.value,
        }
        return [make(limit) for make, limit in makers.items() if limit is not None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoleFactors:
    """Factors on the learning rate per weight role (see layers.weights.weight.Role)."""

    embedding: float = 1.0
    hidden: float = 1.0
    output: float = 1.0
    scale: float = 1.0
    bias: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optax optimizer with clipping, schedule, per-role learning rates and decoupled weight decay.

    One update clips the gradient, scales it by the method, multiplies it by the learning rate and adds weight decay.
    The learning rate is peak * schedule * the weight's factor (`rate`: the role's factor times the parametrization's).

    Decay is decoupled from the gradient (Loshchilov and Hutter 2019): update -= weight_decay * weight * s, with s
    selected by `decay_scale`. "learning_rate": the weight's learning rate, as in AdamW of optax and torch; under muP it
    falls with the width. "base_learning_rate": the learning rate without the weight's factor. "schedule": the schedule
    alone (Lingle 2024, "independent" decay). "none": 1.
    """

    learning_rate: float  # at the schedule's peak
    schedule: Schedule  # factor over time
    clipping: Clipping  # limits on the gradient
    role_factors: RoleFactors  # factors on the learning rate by role
    parametrization: Parametrization = Parametrization()  # factors on the learning rate by role and width
    method: Literal["adamw", "adafactor", "lion", "sgd"] = "adamw"
    beta1: float = 0.9  # decay of the first moment; momentum of sgd
    beta2: float = 0.95  # decay of the second moment; for lion, of its momentum (0.99 in the paper)
    epsilon: float = 1e-8  # added to the root of adamw's second moment
    scale_epsilon: bool = False  # multiply epsilon by the weight's factor on the learning rate
    moment_dtype: Literal["float32", "bfloat16"] = "float32"  # of the first moment (adamw, lion, sgd)
    second_moment_dtype: Literal["float32", "bfloat16"] = "float32"  # of adamw's second moment
    master_weights: bool = False  # keep and update float32 copies; the model's weights are cast from them
    weight_decay: float = 0.0
    decay_scale: Literal["learning_rate", "base_learning_rate", "schedule", "none"] = "learning_rate"
    decay_roles: tuple[str, ...] = ("embedding", "hidden", "output")  # the roles that decay acts on
    no_decay: tuple[str, ...] = ()  # weights without decay, by their names in WEIGHTS
    min_dim_size_to_factor: int = 128  # adafactor: full second moments if one of the two dimensions is smaller

    def __post_init__(self):
        if self.method == "sgd" and self.parametrization.rule != "standard":
            raise UsageError(
                f"PARAMETRIZATION = {self.parametrization.rule} has learning rates for adaptive optimizers only (got "
                f"OPTIMIZER = sgd). Set OPTIMIZER to adamw, lion or adafactor."
            )
        if self.scale_epsilon and (self.method != "adamw" or self.parametrization.rule == "standard"):
            raise UsageError(
                f"scale_epsilon needs adamw under muP (got {self.method} under PARAMETRIZATION = "
                f"{self.parametrization.rule})."
            )

        if self.second_moment_dtype != "float32" and self.method != "adamw":
            raise UsageError(f"SECOND_MOMENT_DTYPE needs OPTIMIZER = adamw (got {self.method}).")

    def rate(self, role: str, fan_in: int) -> float:
        """Returns the factor on a weight's learning rate."""
        relative = self.method == "adafactor"
        return getattr(self.role_factors, role, 1.0) * self.parametrization.rate(role, fan_in, relative)

    def decays(self, role: str, key: str = "") -> bool:
        """Returns whether weight decay acts on a weight of this role and name."""
        return self.weight_decay != 0 and role in self.decay_roles and key not in self.no_decay

    def learning_rate_at(self, step: Any) -> jax.Array:
        """Returns the learning rate of update `step`, counted from 0."""
        return self.learning_rate * self.schedule(step)

    def build(self, table: WeightTable) -> optax.GradientTransformation:
        """Returns the optax transformation for the weights of `table` (its "params" part)."""
        params = table.tree(lambda row: row)["params"]
        factors = jax.tree.map(lambda row: row.rate, params)
        even = set(jax.tree.leaves(factors)) == {1.0}
        times = lambda tree: optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * f, updates, tree))
        decay = optax.add_decayed_weights(self.weight_decay, jax.tree.map(lambda row: row.decay, params))
        chain = self.clipping.build()
        if self.scale_epsilon:
            # g / (|g| + c epsilon) is h / (|h| + epsilon) with h = g / c.
            chain.append(times(jax.tree.map(lambda factor: 1 / factor if factor else 1.0, factors)))
        chain += self._scale(params)
        if self.weight_decay and self.decay_scale == "learning_rate":
            chain.append(decay)
        if not even:
            chain.append(times(factors))
        if self.weight_decay and self.decay_scale == "base_learning_rate":
            chain.append(decay)
        if self.weight_decay and self.decay_scale == "schedule":
            schedule: Any = self.schedule
            chain += [optax.scale(self.learning_rate), decay, optax.scale_by_learning_rate(schedule)]
        else:
            chain.append(optax.scale_by_learning_rate(self.learning_rate_at))
        if self.weight_decay and self.decay_scale == "none":
            chain += [optax.scale(-1), decay, optax.scale(-1)]
        return keep_master(optax.chain(*chain)) if self.master_weights else optax.chain(*chain)

    def _scale(self, rows: Any) -> list[optax.GradientTransformation]:
        if self.method == "adamw":
            adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
            return [store_moments(adam, self.moment_dtype, self.second_moment_dtype)]
        if self.method == "lion":  # Chen et al. 2023, algorithm 2
            return [optax.scale_by_lion(self.beta1, self.beta2, mu_dtype=self.moment_dtype)]
        if self.method == "sgd":
            return [optax.trace(self.beta1, accumulator_dtype=self.moment_dtype)] if self.beta1 else []
        # Weights that shrink with the width would fall below a fixed floor, so the floor shrinks with them.
        floor = lambda row: 1e-3 * self.parametrization.shrinkage(row.role)
        return [scale_by_adafactor(rows, self.min_dim_size_to_factor, scale_floor=floor)]

    def state_specs(self, table: WeightTable, state: Any) -> Any:
        """Returns partition specs in the tree structure of `state`, the abstract state of `build(table)`.

        A slot has its row's `slot_spec`, a factored slot the same without the reduced dimension; counters are
        replicated.
        """
        rows = {tuple(row.path.split("/")[1:]): row for row in table if row.path.startswith("params/")}

        def spec(path: Any, leaf: Any) -> P:
            names = tuple(str(getattr(part, "key", getattr(part, "name", ""))) for part in path)
            for start in range(len(names)):
                for end in (len(names), -1):  # the slot of a weight, or one of its several slots
                    if names[start:end] in rows:
                        return self._slot_spec(rows[names[start:end]], names[end:])
            return P(*[None] * len(leaf.shape))

        return jax.tree_util.tree_map_with_path(spec, state)

    def _slot_spec(self, row: WeightRow, slot: tuple[str, ...]) -> P:
        dims = factored_dims(row, self.min_dim_size_to_factor)
        if dims is None or slot not in (("row",), ("column",)):
            return row.slot_spec
        reduced = dims[slot == ("column",)]
        return P(*[entry for dim, entry in enumerate(row.slot_spec) if dim != reduced])
