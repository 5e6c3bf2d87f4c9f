"""The task protocol: the methods that runners call."""

from typing import Any, Protocol, runtime_checkable

import jax
from flax import struct

from layers.cross_entropy import TokenScores
from layers.specs import Specs
from tasks.batch import Batch
from tasks.metrics import MetricSums
from tasks.optimizers.optimizer import Optimizer
from tasks.spikes import Spikes
from tasks.vocabularies.vocabulary import Vocabulary
from tasks.weight_table import WeightTable
from tasks.zero import Zero


class LossOutput(struct.PyTreeNode):
    """Auxiliary output of a loss."""

    normalizer: Any  # the optimizer minimises loss / normalizer
    metrics: MetricSums
    updates: Any  # of variables without gradient (see layers.auxiliary); empty in evaluation
    state: Any  # the mixers' state after this batch, if the call passed one


@runtime_checkable
class Task(Protocol):
    """Model, loss and optimizer as pure functions of arrays; documented in tasks.language_model_task."""

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def batch_placement(self) -> Specs: ...

    @property
    def zero(self) -> Zero | None: ...

    @property
    def gradient_accumulation(self) -> int: ...

    @property
    def carry_length(self) -> int | None: ...

    @property
    def gradient_dtype(self) -> str: ...

    @property
    def non_finite(self) -> str: ...

    @property
    def spikes(self) -> Spikes | None: ...

    def init(self, rng: jax.Array, batch: Batch) -> Any: ...

    def loss(
        self,
        variables: Any,
        batch: Batch,
        state: Any = None,
        rng: jax.Array | None = None,
        sequence_rng: jax.Array | None = None,
    ) -> tuple[jax.Array, LossOutput]: ...

    def weight_table(self) -> WeightTable: ...

    def zero_sums(self) -> MetricSums: ...

    def token_scores(
        self, variables: Any, batch: Batch, tokens: jax.Array, chunk: int | None = None
    ) -> TokenScores: ...

    def decode_step(
        self,
        variables: Any,
        tokens: jax.Array,
        state: Any,
        segment_ids: Any = None,
        positions: Any = None,
        *,
        last_only: bool = True,
    ) -> tuple[jax.Array, Any]: ...

    # For a loop over single tokens; `state.stacked()` restores the stacked layout.
    def unstack(self, variables: Any, state: Any) -> tuple[Any, Any]: ...

    def init_decode_state(self, batch_size: int, capacity: int) -> Any: ...

    def context_limit(self) -> int | None: ...

    def trained_length(self) -> int | None: ...

    def decoding_caveat(self) -> str | None: ...
