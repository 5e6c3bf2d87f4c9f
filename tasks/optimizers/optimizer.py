"""Optimizers: optax transformations built from the weight table."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from layers.errors import UsageError
from layers.specs import P
from tasks.optimizers.adafactor import factored_dims, scale_by_adafactor
from tasks.optimizers.averages import keep_average
from tasks.optimizers.muon import MuonScale, matrix_of, scale_by_muon
from tasks.optimizers.precision import SlotDtype, keep_master, store_moments
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
            _clip_by_global_norm: self.global_norm,
            optax.clip_by_block_rms: self.block_rms,
            optax.clip: self.value,
        }
        return [make(limit) for make, limit in makers.items() if limit is not None]


def _clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Returns optax.clip_by_global_norm with one factor for all gradients; optax divides each, and XLA stores that."""

    def update(updates, state, params=None):
        factor = limit / jnp.maximum(optax.global_norm(updates), limit)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoleFactors:
    """Factors on the learning rate per weight role (see layers.weights.weight.Role)."""

    embedding: float = 1.0
    hidden: float = 1.0
    output: float = 1.0
    scale: float = 1.0
    bias: float = 1.0


MethodName = Literal["adamw", "adafactor", "lion", "muon", "sgd"]
RowMethod = Literal[MethodName, "none"]  # "none": the weight is not trained


def used_methods(method: str, methods: Iterable[str]) -> set[str]:
    """Returns the methods that weights may have: that of all weights, and those of some of them.

    Weights that muon does not update have adamw if muon is the method of all.
    """
    return {method, *methods} | ({"adamw"} if method == "muon" else set())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Optax optimizers with clipping, schedule, per-role learning rates and decoupled weight decay.

    Each weight has one method: `methods` of its name, of the letters of its dimensions or of its role, else `method`.
    Muon updates matrices between hidden layers only; other weights have adamw, unless `methods` names them.

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
    method: MethodName = "adamw"
    methods: tuple[tuple[str, RowMethod], ...] = ()  # of a name, letters ("_mnd") or role
    beta1: float = 0.9  # decay of the first moment; momentum of sgd
    beta2: float = 0.95  # decay of the second moment; for lion, of its momentum (0.99 in the paper)
    muon_beta: float = 0.95  # decay of muon's momentum
    muon_scale: MuonScale = "rms"  # size of muon's updates: see tasks.optimizers.muon.Matrix
    epsilon: float = 1e-8  # added to the root of adamw's second moment
    scale_epsilon: bool = False  # multiply epsilon by the weight's factor on the learning rate
    moment_dtype: SlotDtype = "float32"  # of the first moment (adamw, lion, muon, sgd)
    second_moment_dtype: SlotDtype = "float32"  # of adamw's second moment
    average_decay: float | None = None  # of an exponential moving average of the weights, which is evaluated; None: off
    schedule_free: bool = False  # momentum and decay of the rate by averaging (Defazio et al. 2024); adamw and sgd
    master_weights: bool = False  # keep and update float32 copies; the model's weights are cast from them
    weight_decay: float = 0.0
    decay_scale: Literal["learning_rate", "base_learning_rate", "schedule", "none"] = "learning_rate"
    decay_roles: tuple[str, ...] = ("embedding", "hidden", "output")  # the roles that decay acts on
    no_decay: tuple[str, ...] = ()  # weights without decay, by their names in WEIGHTS
    min_dim_size_to_factor: int = 128  # adafactor: full second moments if one of the two dimensions is smaller

    def __post_init__(self):
        rule, used = self.parametrization.rule, used_methods(self.method, dict(self.methods).values())
        if "sgd" in used and rule != "standard":
            raise UsageError(
                f"PARAMETRIZATION = {rule} has learning rates for adaptive optimizers only (got "
                f"{self._setting('sgd')}). Set it to adamw, lion, muon or adafactor."
            )
        if "muon" in used and rule != "standard" and self.muon_scale != "spectral":
            raise UsageError(
                f"MUON_SCALE = {self.muon_scale} does not work with PARAMETRIZATION = {rule}: its updates change "
                f"outputs more in wider layers. Set MUON_SCALE=none."
            )
        if self.scale_epsilon and ("adamw" not in used or rule == "standard"):
            raise UsageError(f"scale_epsilon needs adamw under muP (got {self.method} under PARAMETRIZATION = {rule}).")
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise UsageError(f"EMA_DECAY must be between 0 and 1 (got {self.average_decay}). Set 0.999, for example.")
        if self.schedule_free:
            self._require_schedule_free(used)
        if self.second_moment_dtype != "float32" and "adamw" not in used:
            raise UsageError(f"SECOND_MOMENT_DTYPE needs OPTIMIZER = adamw (got {self.method}).")

    def _require_schedule_free(self, used: set[str]) -> None:
        """Raises a UsageError unless the other settings go with averaging in place of a schedule."""
        if others := sorted(used - {"adamw", "sgd", "none"}):
            raise UsageError(f"SCHEDULE_FREE does not work with {self._setting(others[0])}. Set it to adamw or sgd.")
        if self.schedule.kind != "constant":
            raise UsageError(
                f"SCHEDULE_FREE replaces a falling learning rate (got SCHEDULE = {self.schedule.kind}). Set "
                f"SCHEDULE=constant."
            )
        if self.average_decay is not None:
            raise UsageError(
                f"SCHEDULE_FREE evaluates an average of its own (got EMA_DECAY = {self.average_decay}). Set "
                f"EMA_DECAY=none."
            )
        if self.moment_dtype != "float32":
            raise UsageError(
                f"SCHEDULE_FREE has no first moment (got MOMENT_DTYPE = {self.moment_dtype}). Set MOMENT_DTYPE=float32."
            )
        if not 0 < self.beta1 < 1:
            raise UsageError(f"BETA1 must be between 0 and 1 with SCHEDULE_FREE (got {self.beta1}). Set BETA1=0.9.")

    def _setting(self, method: str) -> str:
        """Returns the setting that names a method: `OPTIMIZER = sgd` or `OPTIMIZERS.hidden = sgd`."""
        key = next((f"OPTIMIZERS.{key}" for key, value in self.methods if value == method), "OPTIMIZER")
        return f"{'OPTIMIZER' if self.method == method else key} = {method}"

    def assign(self, row: WeightRow) -> WeightRow:
        """Returns the row of a weight with its method, its factor on the learning rate, and whether it decays.

        Raises:
          UsageError: `methods` gives Muon to a weight, by its name or letters, that is not a matrix.
        """
        method = self._method_of(row) if row.learned else "none"
        if method == "none":
            return dataclasses.replace(row, method=method)
        # The scale of muon's updates has the factor of the width already.
        relative: dict[str, Literal["rms", "spectral"]] = {"adafactor": "rms", "muon": "spectral"}
        rate = self.parametrization.rate(row.role, row.fan_in, relative.get(method))
        return dataclasses.replace(
            row,
            method=method,
            rate=getattr(self.role_factors, row.role, 1.0) * rate,
            decay=self.weight_decay != 0 and row.role in self.decay_roles and row.key not in self.no_decay,
        )

    def _method_of(self, row: WeightRow) -> str:
        methods = dict(self.methods)
        for name in (row.key, f"_{row.letters}"):
            if name in methods:
                if methods[name] == "muon" and matrix_of(row) is None:
                    raise UsageError(
                        f"OPTIMIZERS.{name} = muon needs a matrix (got {row.path}, whose shape is {row.shape}). Set it "
                        f"to adamw."
                    )
                return methods[name]
        of_role = methods.get(row.role)
        method = of_role or self.method
        if method == "muon" and (matrix_of(row) is None or (of_role is None and row.role != "hidden")):
            return "adamw" if self.method == "muon" else self.method
        return method

    def learning_rate_at(self, step: Any) -> jax.Array:
        """Returns the learning rate of update `step`, counted from 0."""
        return self.learning_rate * self.schedule(step)

    def build(self, table: WeightTable) -> optax.GradientTransformation:
        """Returns the optax transformation for the trained weights of `table`."""
        params = table.params
        factors = jax.tree.map(lambda row: row.rate, params)
        even = set(jax.tree.leaves(factors)) == {1.0}
        times = lambda tree: optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * f, updates, tree))
        decay = optax.add_decayed_weights(self.weight_decay, jax.tree.map(lambda row: row.decay, params))
        chain = self.clipping.build()
        if self.scale_epsilon:
            # g / (|g| + c epsilon) is h / (|h| + epsilon) with h = g / c.
            inverse = lambda row: 1 / row.rate if row.rate and row.method == "adamw" else 1.0
            chain.append(times(jax.tree.map(inverse, params)))
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
        optimizer = optax.chain(*chain)
        if self.schedule_free:
            rate: Any = lambda count: self.learning_rate_at(count - 1)  # it counts updates from 1
            optimizer = contrib.schedule_free(optimizer, rate, b1=self.beta1, state_dtype=jnp.float32)
        if self.master_weights:
            optimizer = keep_master(optimizer)
        return optimizer if self.average_decay is None else keep_average(optimizer, self.average_decay)

    @property
    def averages(self) -> bool:
        """Whether other weights are evaluated than those that gradients are taken of."""
        return self.schedule_free or self.average_decay is not None

    def exact(self, weights: Any, state: Any) -> Any:
        """Returns the weights that updates are added to: the float32 copies with master_weights, else `weights`."""
        if not self.master_weights:
            return weights
        return (state if self.average_decay is None else state.inner).weights

    def evaluated(self, weights: Any, state: Any) -> Any:
        """Returns the weights to evaluate, sample from and export.

        Args:
          weights: the trained weights.
          state: the optimizer's state.
        """
        if self.average_decay is not None:
            averaged = state.weights
        elif self.schedule_free:
            inner, exact = (state.inner, state.weights) if self.master_weights else (state, weights)
            averaged = contrib.schedule_free_eval_params(inner, exact)
        else:
            return weights
        return jax.tree.map(lambda w, average: average.astype(w.dtype), weights, averaged)

    def _scale(self, rows: Any) -> list[optax.GradientTransformation]:
        """Returns the methods of the rows: one as it is, several each for its weights."""
        methods = jax.tree.map(lambda row: row.method, rows)
        names = sorted(set(jax.tree.leaves(methods)))
        if len(names) < 2:
            return [part for name in names for part in self._method(name, rows)]
        own = lambda name: jax.tree.map(lambda row: row if row.method == name else optax.MaskedNode(), rows)
        parts: dict[Any, Any] = {name: optax.chain(*self._method(name, own(name))) for name in names}
        return [optax.partition(parts, methods)]

    def _method(self, name: str, rows: Any) -> list[optax.GradientTransformation]:
        if name == "adamw" and self.schedule_free:
            rms = optax.scale_by_rms(self.beta2, self.epsilon, eps_in_sqrt=False, bias_correction=True)
            return [store_moments(rms, {"nu": self.second_moment_dtype}, rows)]
        if name == "adamw":
            adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
            return [store_moments(adam, {"mu": self.moment_dtype, "nu": self.second_moment_dtype}, rows)]
        if name == "muon":
            return scale_by_muon(rows, self.muon_beta, self.muon_scale, self.moment_dtype)
        if name == "lion":  # Chen et al. 2023, algorithm 2
            return [store_moments(optax.scale_by_lion(self.beta1, self.beta2), {"mu": self.moment_dtype}, rows)]
        if name == "sgd":
            has_momentum = self.beta1 and not self.schedule_free
            momentum = store_moments(optax.trace(self.beta1), {"trace": self.moment_dtype}, rows)
            return [momentum] if has_momentum else []
        # Weights that shrink with the width would fall below a fixed floor, so the floor shrinks with them.
        floor = lambda row: 1e-3 * self.parametrization.shrinkage(row.role)
        return [scale_by_adafactor(rows, self.min_dim_size_to_factor, scale_floor=floor)]

    def state_specs(self, table: WeightTable, state: Any) -> Any:
        """Returns partition specs in the tree structure of `state`, the abstract state of `build(table)`.

        A slot has its row's `slot_spec`, a factored slot the same without the reduced dimension; counters are
        replicated.
        """
        return jax.tree.unflatten(jax.tree.structure(state), [spec for _, _, spec in self.slots(table, state)])

    def slots(self, table: WeightTable, state: Any) -> Iterator[tuple[WeightRow | None, Any, P]]:
        """Yields every leaf of `state`, the state of `build(table)`, with its spec and the row whose slot it is.

        The row is None for counters.
        """
        rows = {tuple(row.path.split("/")[1:]): row for row in table if row.trained}
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            names = tuple(str(getattr(part, "key", getattr(part, "name", ""))) for part in path)
            # The slot of a weight, or one of its several slots.
            ends = [(start, end) for start in range(len(names)) for end in (len(names), len(names) - 1)]
            found = next(((rows[names[a:b]], names[b:]) for a, b in ends if names[a:b] in rows), None)
            if found is None:
                yield None, leaf, P(*[None] * len(leaf.shape))
            else:
                yield found[0], leaf, self._slot_spec(*found)

    def _slot_spec(self, row: WeightRow, slot: tuple[str, ...]) -> P:
        if slot == ("scales",):  # of blocks, which shards of the last dimension may cut
            return P(*row.slot_spec[:-1], None)
        dims = factored_dims(row, self.min_dim_size_to_factor) if row.method == "adafactor" else None
        if dims is None or slot not in (("row",), ("column",)):
            return row.slot_spec
        reduced = dims[slot == ("column",)]
        return P(*[entry for dim, entry in enumerate(row.slot_spec) if dim != reduced])
