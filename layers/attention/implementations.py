"""Which implementation computes softmax attention: decided here, for each layer while its program is traced."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal

from layers.errors import UsageError
from layers.platform import target_platform

Implementation = Literal["auto", "dense", "blockwise", "cudnn"]

# The number of keys from which "auto" is blockwise, by platform: where its update takes no longer than that of dense
# attention (docs/reference/benchmarks.md), and on TPUs, where that was not measured, as on CPUs.
BLOCKWISE_FROM = {"cpu": 2048, "gpu": 1024, "tpu": 2048}
CUDNN_HEAD_DIM = (
    128  # the largest size of a head, a multiple of 8 (cuDNN 9 documentation, scaled dot-product attention)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """What one layer computes, apart from sizes of batch and heads."""

    queries: int
    keys: int
    head_dim: int
    dtype: str
    has_state: bool  # keys are in a cache
    has_segments: bool  # rows are packed or padded
    dropout_rate: float
    window: int | None
    softcap: float | None
    bias: Literal["none", "by_distance", "matrix"]  # whether it depends on the distance between query and key alone
    extra_logit: float | None
    score_function: str
    is_watched: bool  # the caller collects scores and probabilities

    def without_cudnn(self) -> list[tuple[str, str]]:
        """Returns why cuDNN does not compute it: reasons, each with the knob that removes it, or ""."""
        heads_fit = self.head_dim % 8 == 0 and self.head_dim <= CUDNN_HEAD_DIM
        found: list[tuple[bool, str, str]] = [
            (self.dropout_rate > 0, "dropout on attention", "ATTENTION_DROPOUT=0"),
            (self.dtype not in ("bfloat16", "float16"), f"{self.dtype} activations", "DTYPE=bfloat16"),
            (self.window is not None, "a window", "ATTENTION_WINDOW=None"),
            (self.softcap is not None, "a cap on the scores", "ATTENTION_SOFTCAP=None"),
            (self.extra_logit is not None, "an extra logit", "EXTRA_LOGIT=None"),
            (self.score_function != "softmax", "the score function", "SCORE_FUNCTION=softmax"),
            (self.bias != "none", "biases of positions", "POSITIONS=rotary"),
            (not heads_fit, f"heads of size {self.head_dim}", "HEAD_DIM"),
            # Their mask would be an array as large as all scores.
            (self.has_segments, "rows of several segments", ""),
            (self.has_state, "a cache of keys", ""),
        ]
        return [(reason, knob) for is_met, reason, knob in found if is_met]

    def without_blocks(self) -> str:
        """Returns why it cannot be computed by blocks; empty if it can."""
        if self.bias == "matrix":
            return "a relative bias without a method by_distance"
        return "watched scores" if self.is_watched else ""


@dataclasses.dataclass(frozen=True)
class Decision:
    """The implementation of one layer."""

    layer: str  # path of the module
    implementation: Implementation
    without_cudnn: tuple[tuple[str, str], ...] = ()  # of a program for GPUs: see `Call.without_cudnn`


_ALL_DENSE: contextvars.ContextVar[bool] = contextvars.ContextVar("all_dense", default=False)
_RECORDS: contextvars.ContextVar[tuple[list[Decision], ...]] = contextvars.ContextVar("records", default=())


@contextlib.contextmanager
def recorded() -> Iterator[list[Decision]]:
    """Collects the decisions of programs that are traced inside the context."""
    found: list[Decision] = []
    token = _RECORDS.set((*_RECORDS.get(), found))
    try:
        yield found
    finally:
        _RECORDS.reset(token)


@contextlib.contextmanager
def all_dense() -> Iterator[None]:
    """Makes attention dense in programs that are traced inside the context, to count the products of a model.

    So the count does not depend on the platform, and has all pairs of queries and keys (Chowdhery et al. 2022,
    appendix B).
    """
    token = _ALL_DENSE.set(True)
    try:
        yield
    finally:
        _ALL_DENSE.reset(token)


def choose(wanted: Implementation, call: Call, layer: str | None) -> Implementation:
    """Returns the implementation of a layer, and records it under its path, if that is given.

    "auto" is cuDNN's kernel on a GPU if it can compute all of the call, else blockwise for rows of BLOCKWISE_FROM keys
    and more, else dense. One query at a time is always dense: it has one row of scores.

    Raises:
      UsageError: the wanted one cannot compute the call.
    """
    if _ALL_DENSE.get():
        return "dense"
    platform = target_platform()
    obstacles, no_blocks = call.without_cudnn(), call.without_blocks()
    if wanted == "blockwise" and call.bias == "matrix":
        raise UsageError(f"ATTENTION_IMPLEMENTATION = blockwise does not support {no_blocks}. Set only one of them.")
    if wanted == "cudnn" and platform != "gpu":
        raise UsageError(f"ATTENTION_IMPLEMENTATION = cudnn needs a GPU (got {platform}). Set it to auto.")
    if wanted == "cudnn" and (reasons := [reason for reason, _ in obstacles if reason not in _MASKED]):
        raise UsageError(f"ATTENTION_IMPLEMENTATION = cudnn does not support {reasons[0]}. Set only one of them.")
    chosen = wanted
    if wanted == "blockwise" and (no_blocks or call.queries == 1):
        chosen = "dense"
    if wanted == "auto":
        is_long = call.keys >= BLOCKWISE_FROM[platform] and call.queries > 1
        chosen = "blockwise" if is_long and not no_blocks else "dense"
        chosen = "cudnn" if platform == "gpu" and not obstacles else chosen
    if layer is not None:
        decision = Decision(layer, chosen, tuple(obstacles) if platform == "gpu" else ())
        for record in _RECORDS.get():
            record.append(decision)
    return chosen


_MASKED = ("rows of several segments", "a cache of keys")  # cuDNN computes them with a mask, an array of all pairs


def description(decisions: Iterable[Decision]) -> str:
    """Returns which layers have which implementation, as `dense in a and b, cudnn in c`; empty without attention."""
    layers: dict[str, list[str]] = {}
    for decision in dict.fromkeys(decisions):
        places = layers.setdefault(decision.implementation, [])
        if decision.layer not in places:
            places.append(decision.layer)
    return ", ".join(f"{name} in {_listed(places)}" for name, places in layers.items())


def _listed(names: list[str]) -> str:
    if len(names) > 3:
        return f"{names[0]} and {len(names) - 1} other layers"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
