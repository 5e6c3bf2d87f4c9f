"""The language-modeling task: loss, decoding and weight table of next-token prediction."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from layers.auxiliary import BY_LAYER, CHECKED, LOSSES, METRICS, UPDATES, RowSummary
from layers.cross_entropy import TokenScores, chunked_cross_entropy, chunked_token_scores, in_chunks
from layers.errors import UsageError
from layers.head_qk import PointedFeatures
from layers.language_model import LanguageModel
from layers.specs import Specs
from tasks.batch import Batch
from tasks.metrics import MetricSums
from tasks.optimizers.optimizer import Optimizer
from tasks.spikes import Spikes
from tasks.task import LossOutput
from tasks.vocabularies.vocabulary import Vocabulary
from tasks.weight_table import WeightTable
from tasks.zero import Zero


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModelTask:
    """Model, loss and optimizer; pure functions of arrays."""

    SPECS: ClassVar[tuple[str, ...]] = ("tokens_bs",)

    model: LanguageModel
    optimizer: Optimizer
    vocabulary: Vocabulary
    batch_placement: Specs  # rows `tokens_bs`: how a batch is split over the mesh
    z_loss: float = 0.0  # weight of log(Z)^2 in the objective
    label_smoothing: float = 0.0  # weight of the uniform distribution in the target
    normalizer: Literal["weights", "positions"] = "weights"  # the loss is a mean over targets, or over all positions
    loss_chunk: int | None = None  # positions whose logits are held at once; None is all of them
    carry_length: int | None = None  # positions of a full row if it is read in chunks (TBPTT), else None
    gradient_accumulation: int = 1  # micro-batches per batch
    gradient_dtype: Literal["float32", "bfloat16"] = "float32"  # of stored gradients
    zero: Zero | None = None  # splits the training state over a data axis; None leaves communication to the compiler
    non_finite: Literal["stop", "skip"] = (
        "stop"  # on a loss, gradient or new weight that is not finite: end the run, or drop the update
    )
    spikes: Spikes | None = None  # drop updates of much higher loss or gradient norm than those before; None: none

    def __post_init__(self):
        if self.gradient_accumulation < 1 or (self.loss_chunk is not None and self.loss_chunk < 1):
            raise ValueError("gradient_accumulation and loss_chunk must be at least 1")

    def init(self, rng: jax.Array, batch: Batch) -> Any:
        """Returns the model's initial variables, in `Weight` boxes."""
        return _init(self.model, rng, batch)

    @functools.cached_property
    def table(self) -> WeightTable:
        """The weight table, from an abstract init that allocates no arrays."""
        model: Any = self.model
        try:
            hash(model)
        except TypeError:  # a layer of a user has a field that can be changed
            return WeightTable(_abstract_init(model)).mapped(self.optimizer.assign)
        return WeightTable(_known_abstract_init(model)).mapped(self.optimizer.assign)

    def weight_table(self) -> WeightTable:
        """Returns the weight table: one row per weight."""
        return self.table

    @functools.cached_property
    def _token_bytes(self) -> np.ndarray:
        """Bytes of text for each row of the embedding, float32 (V,).

        Special tokens that neither texts nor their ends use may have no row: Gemma 3 1B has 262,144 rows, and its
        tokenizer a token 262144.

        Raises:
          UsageError: the vocabulary cannot be read, or needs more rows than the model has.
        """
        counts, rows = self.vocabulary.token_bytes(), self.model.embedding.vocab_size
        if self.vocabulary.needed_rows > rows:
            raise UsageError(
                f"VOCAB_SIZE = {rows} is smaller than the vocabulary, {self.vocabulary.describe()} "
                f"({len(counts):,} tokens). Set VOCAB_SIZE={len(counts)}."
            )
        return np.pad(counts[:rows], (0, max(0, rows - len(counts))))

    @functools.cached_property
    def metric_names(self) -> list[str]:
        """Names of the metrics that the model's layers report."""
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)

        def read(variables: Any, tokens: jax.Array) -> dict[str, jax.Array]:
            apply: Any = self.model.apply
            result = apply(variables, tokens, mutable=[METRICS])
            return _by_name(result[1])

        return sorted(jax.eval_shape(read, self.table.abstract, tokens))

    def zero_sums(self) -> MetricSums:
        """Returns metric sums of zero."""
        return MetricSums.zero(self.metric_names)

    def loss(
        self,
        variables: Any,
        batch: Batch,
        state: Any = None,
        rng: jax.Array | None = None,
        sequence_rng: jax.Array | None = None,
    ) -> tuple[jax.Array, LossOutput]:
        """Returns the objective times `LossOutput.normalizer`, and the LossOutput.

        Args:
          variables: the model's variables; "params" and any collections without gradient.
          batch: B rows of S positions.
          state: of the preceding chunk of each row (truncated back-propagation); None starts new rows.
          rng: for dropout; None turns off dropout and updates of variables without gradient.
          sequence_rng: for dropout that is the same for all chunks of a row; None derives it from `rng`.
        """
        features, state, collections = self._forward(variables, batch, state, rng, sequence_rng)
        added, reported, updates = (collections.get(name, {}) for name in (LOSSES, METRICS, UPDATES))
        by_position, join = _split_positions(features)
        sums = chunked_cross_entropy(
            by_position,
            lambda chunk: self._logits(variables, join(chunk)),
            batch.targets,
            batch.weights,
            self.loss_chunk,
            self.z_loss,
            self.label_smoothing,
            self.model.embedding.vocab_size,
        )
        normalizer = sums.weight if self.normalizer == "weights" else jnp.float32(batch.weights.size)
        # The layers' terms are already means.
        objective = sums.objective + normalizer * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(added))
        metrics = MetricSums.zero().replace(
            objective=objective,
            normalizer=normalizer,
            loss=sums.loss,
            correct=sums.correct,
            weight=sums.weight,
            bytes=jnp.sum(jnp.asarray(self._token_bytes)[batch.targets] * batch.weights),
            tokens=jnp.sum(batch.weights > 0, dtype=jnp.int32),
            reports={name: normalizer * value for name, value in _by_name(reported).items()},
        )
        return objective, LossOutput(normalizer, metrics, updates, state)

    def checked_outputs(
        self, variables: Any, batch: Batch, state: Any, rng: jax.Array, sequence_rng: jax.Array
    ) -> dict[str, RowSummary]:
        """Returns summaries of the outputs of the model's parts, by path; arguments as in `loss`.

        Those of stacked layers have a leading dimension of layers. `logits`, `loss` (cross-entropy) and
        `losses/PATH` (terms of layers) are the last ones.
        """
        features, _, collections = self._forward(variables, batch, state, rng, sequence_rng, (CHECKED, LOSSES))
        checked: Any = traverse_util.flatten_dict(collections.get(CHECKED, {}), sep="/")
        added: Any = traverse_util.flatten_dict(collections.get(LOSSES, {}), sep="/")
        by_position, join = _split_positions(features)

        def largest_and_loss(features: Any, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            logits = self._logits(variables, join(features))[..., : self.model.embedding.vocab_size]
            losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, targets)
            return jnp.max(jnp.abs(logits), axis=-1), losses * weights

        parts = (by_position, batch.targets, batch.weights)
        logits_bs, losses_bs = in_chunks(largest_and_loss, parts, batch.targets.shape[1], self.loss_chunk)
        found = {**checked, "logits": RowSummary.of(logits_bs), "loss": RowSummary.of(losses_bs)}
        rows = jnp.zeros(batch.targets.shape[0], jnp.int32)
        for path, value in added.items():  # not of single rows: all have the value
            first = jnp.where(jnp.isfinite(value), -1, 0)[..., None] + rows
            found[f"losses/{path}"] = RowSummary(first, jnp.abs(value)[..., None] + rows)
        return found

    def _forward(
        self,
        variables: Any,
        batch: Batch,
        state: Any,
        rng: jax.Array | None,
        sequence_rng: jax.Array | None,
        collected: tuple[str, ...] = (LOSSES, METRICS),
    ) -> tuple[Any, Any, Any]:
        """Returns features, the new state, and the collections that layers add to: `collected`, in training UPDATES."""
        rngs = {}
        if rng is not None:
            rngs = {"dropout": rng, "sequence": jax.random.fold_in(rng, 1) if sequence_rng is None else sequence_rng}
        names = [*collected, UPDATES] if rngs else list(collected)
        segments = batch.segments
        if state is not None and segments is not None:
            segments = segments.astype(jnp.int32)  # the state has numbers of segments
        arguments = (batch.inputs, state, segments, batch.positions)
        apply: Any = self.model.apply
        (features, state), collections = apply(variables, *arguments, rngs=rngs, mutable=names)
        return features, state, collections

    def _logits(self, variables: Any, features: Any) -> jax.Array:
        logits: Any = self.model.apply(variables, features, method="logits")
        return logits

    def logits(self, variables: Any, tokens: jax.Array) -> jax.Array:
        """Returns float32 logits (B, S, V) of the token after each position of `tokens` (B, S)."""
        features, _ = self.model.apply(variables, tokens)
        return self._logits(variables, features)

    def token_scores(self, variables: Any, batch: Batch, tokens: jax.Array, chunk: int | None = None) -> TokenScores:
        """Returns the log-probabilities of `tokens` (B, S, T) after each position of the inputs, without dropout.

        Args:
          variables: the model's variables.
          batch: B rows of S positions, of which only the inputs, segments and positions are read.
          tokens: int32 (B, S, T), T candidates for the next token at each position.
          chunk: positions whose logits are held at once, a divisor of S; None is all of them.
        """
        features, _, _ = self._forward(variables, batch, None, None, None)
        by_position, join = _split_positions(features)
        return chunked_token_scores(by_position, lambda part: self._logits(variables, join(part)), tokens, chunk)

    def decode_step(
        self,
        variables: Any,
        tokens: jax.Array,
        state: Any,
        segment_ids: Any = None,
        positions: Any = None,
        *,
        last_only: bool = True,
    ) -> tuple[jax.Array, Any]:
        """Reads `tokens` (B, S) after those in `state`.

        Returns:
          float32 logits of the token after the last one (B, V), or after each of them (B, S, V), and the new state.
        """
        result: Any = self.model.apply(variables, tokens, state, segment_ids, positions)
        features, state = result
        if not last_only:
            return self._logits(variables, features), state
        by_position, join = _split_positions(features)
        last = jax.tree.map(lambda x: x[:, -1:], by_position)
        return self._logits(variables, join(last))[:, 0], state

    def unstack(self, variables: Any, state: Any) -> tuple[Any, Any]:
        """Returns variables and state unstacked by layer, for fast single-token steps; `state.stacked()` reverts it."""
        return self.model.unstack(variables, state)

    def init_decode_state(self, batch_size: int, capacity: int) -> Any:
        """Returns an empty decoding state for `capacity` positions."""
        return self.model.init_state(batch_size, capacity)

    def context_limit(self) -> int | None:
        """Returns the largest number of positions the model supports; None if unlimited."""
        return getattr(self.model.positions, "max_length", None)

    def trained_length(self) -> int | None:
        """Returns the number of positions per row that the trained model is made for; None if it is not stated."""
        stated = [length for length in (self.model.max_length, self.context_limit()) if length is not None]
        return min(stated, default=None)

    def decoding_caveat(self) -> str | None:
        """Returns how decoding differs from a pass over complete rows, by the first layer that has such a method."""
        caveats = (module.decoding_caveat() for module in _modules(self.model) if hasattr(module, "decoding_caveat"))
        return next((caveat for caveat in caveats if caveat is not None), None)


def _modules(module: Any) -> Iterator[Any]:
    """Yields a module and all modules in its fields."""
    yield module
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, nn.Module):
                yield from _modules(part)


def _split_positions(features: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Splits features into the part with positions, for chunking, and a function that joins a chunk with the rest."""
    if isinstance(features, PointedFeatures):
        tokens_bt = features.tokens_bt
        return features.replace(tokens_bt=None), lambda chunk: chunk.replace(tokens_bt=tokens_bt)
    return features, lambda chunk: chunk


def _by_name(reported: Any) -> dict[str, jax.Array]:
    """Returns the mean over layers of each reported name, and the layers' values of names that end in BY_LAYER.

    The latter are named by their number among the layers that report it: `router_load_max_layer_0`.
    """
    values: dict[str, dict[str, list[jax.Array]]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(reported):
        stack = next((step.key for step in path if step.key.startswith("stacks_")), "")
        values.setdefault(path[-1].key, {}).setdefault(stack, []).append(leaf)
    found: dict[str, jax.Array] = {}
    for name, of_stacks in values.items():
        leaves = [leaf for of_stack in of_stacks.values() for leaf in of_stack]
        if not name.endswith(BY_LAYER):
            found[name] = jnp.mean(jnp.stack([jnp.mean(leaf) for leaf in leaves]))
            continue
        # A stack's leaves are the layers of its pattern, each with one value for every repeat.
        layers = [jnp.stack([jnp.atleast_1d(leaf) for leaf in part], axis=1).ravel() for part in of_stacks.values()]
        name = f"{name.removesuffix(BY_LAYER)}_layer_"
        found |= {f"{name}{number}": value for number, value in enumerate(jnp.concatenate(layers))}
    return found


def _init(model: Any, rng: jax.Array, batch: Batch) -> Any:
    return model.init({"params": rng}, batch.inputs, None, batch.segments, batch.positions)


def _abstract_init(model: Any) -> Any:
    """Returns the initial variables of a model in `Weight` boxes, as shapes and dtypes."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    batch = Batch(inputs=tokens, targets=tokens, weights=tokens)
    return jax.eval_shape(lambda batch: _init(model, jax.random.key(0), batch), batch)


_known_abstract_init = functools.lru_cache(maxsize=32)(_abstract_init)  # equal models are built again and again
