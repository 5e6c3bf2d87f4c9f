"""Which implementation computes softmax attention, and how devices that share a sequence exchange keys.

Both are decided here, for each layer while its program is traced.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from jax._src.cudnn import fused_attention_stablehlo

from layers.errors import UsageError
from layers.platform import (
    checked_platform,
    has_several_devices,
    products_are_counted,
    target_device_kind,
    target_platform,
    tracing_with,
)

Implementation = Literal["auto", "dense", "blockwise", "cudnn", "splash"]
# How attention exchanges arrays over the mesh axis that splits positions. ring: keys and values travel from device to
# device. all_gather: all devices receive all of them. all_to_all: a device gives up its share of the positions for a
# share of the heads (Jacobs et al. 2023, DeepSpeed-Ulysses, section 3.1).
ContextParallel = Literal["auto", "ring", "all_gather", "all_to_all"]

# The number of keys from which "auto" is blockwise, by platform: where its update takes no longer than that of dense
# attention (docs/reference/benchmarks.md), and on TPUs, where that was not measured, as on CPUs.
BLOCKWISE_FROM = {"cpu": 2048, "gpu": 1024, "tpu": 2048}
# The number of parts of the queries of a causal row in dense attention, by the least number of queries. Each part has
# the keys up to its last query: two parts leave out half of the pairs that causality excludes. Only on one CPU, because
# other devices need large products, and only without dropout, which draws one mask for all pairs.
QUERY_PARTS = {0: 1, 256: 2, 1024: 4}
KERNELS: dict[str, Implementation] = {"gpu": "cudnn", "tpu": "splash"}  # that of each platform
SPLASH_BLOCK = 128  # positions in a block of the kernel for TPUs are a multiple of it
WITHOUT_SPLASH = ("TPU v2", "TPU v3")  # they do not multiply bfloat16 matrices in kernels
SEGMENTS, CACHED, WATCHED = "rows of several segments", "a cache of keys", "watched scores"
UNALIGNED = f"rows that are not a multiple of {SPLASH_BLOCK} positions"
RING_FROM = 16_384  # keys from which "auto" is a ring, which overlaps with work; not measured
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
    causal: bool
    has_state: bool  # keys are in a cache
    has_segments: bool  # rows are packed or padded
    dropout_rate: float
    window: int | None
    softcap: float | None
    bias: Literal["none", "by_distance", "matrix"]  # whether it depends on the distance between query and key alone
    extra_logit: float | None
    score_function: str
    is_watched: bool  # the caller collects scores and probabilities
    max_segments: int | None = None  # in a row; None: unknown
    parts: int = 1  # devices that share a sequence
    heads_divide: bool = True  # these devices, and those that split heads already, divide the heads of queries and keys

    def without_kernel(self, kernel: Implementation) -> list[tuple[str, str]]:
        """Returns why a kernel does not compute it: reasons, each with the knob that removes it, or ""."""
        found: list[tuple[bool, str, str]] = [
            (self.dropout_rate > 0, "dropout on attention", "ATTENTION_DROPOUT=0"),
            (self.score_function != "softmax", "the score function", "SCORE_FUNCTION=softmax"),
            (self.bias != "none", "biases of positions", "POSITIONS=rotary"),
            *(self._without_cudnn() if kernel == "cudnn" else self._without_splash()),
            (self.has_state, CACHED, ""),
            (self.is_watched, WATCHED, ""),
        ]
        return [(reason, knob) for is_met, reason, knob in found if is_met]

    def _without_cudnn(self) -> list[tuple[bool, str, str]]:
        heads_fit = self.head_dim % 8 == 0 and self.head_dim <= CUDNN_HEAD_DIM
        is_packed = self.has_segments and self.max_segments is not None
        return [
            (self.dtype not in ("bfloat16", "float16"), f"{self.dtype} activations", "DTYPE=bfloat16"),
            (self.softcap is not None, "a cap on the scores", "ATTENTION_SOFTCAP=None"),
            (self.extra_logit is not None, "an extra logit", "EXTRA_LOGIT=None"),
            (not heads_fit, f"heads of size {self.head_dim}", "HEAD_DIM"),
            # Without a limit their mask would be an array as large as all scores.
            (self.has_segments and not is_packed, SEGMENTS, "MAX_SEGMENTS"),
            (is_packed and not _has_packed_rows(), f"{SEGMENTS} on a GPU before Hopper", ""),
            (is_packed and self.window is not None, f"a window on {SEGMENTS}", "ATTENTION_WINDOW=None"),
        ]

    def _without_splash(self) -> list[tuple[bool, str, str]]:
        chip, sizes = target_device_kind(), {self.queries % SPLASH_BLOCK, self.keys % SPLASH_BLOCK}
        return [
            (chip.startswith(WITHOUT_SPLASH), f"a {chip}", ""),
            (sizes != {0}, UNALIGNED, "SEQ_LEN"),
        ]

    def query_parts(self) -> int:
        """Returns into how many parts dense attention divides the queries on a CPU: see QUERY_PARTS."""
        in_one = not self.causal or self.has_state or self.is_watched or self.dropout_rate > 0 or has_several_devices()
        if in_one or target_platform() != "cpu":
            return 1
        return max(n for least, n in QUERY_PARTS.items() if self.queries >= least and self.queries % n == 0)

    def without_blocks(self) -> str:
        """Returns why it cannot be computed by blocks; empty if it can."""
        if self.bias == "matrix":
            return "a relative bias without a method by_distance"
        return WATCHED if self.is_watched else ""


@dataclasses.dataclass(frozen=True)
class Decision:
    """The implementation of one layer."""

    layer: str  # path of the module
    implementation: Implementation
    without_kernel: tuple[tuple[str, str], ...] = ()  # on a platform with a kernel: see `Call.without_kernel`
    exchange: ContextParallel | None = None  # None: devices do not share a sequence, or the compiler gathers keys
    query_parts: int = 1  # of dense attention


_RECORDS: contextvars.ContextVar[tuple[list[Decision], ...]] = contextvars.ContextVar("records", default=())


@contextlib.contextmanager
def recorded() -> Iterator[list[Decision]]:
    """Collects the decisions of programs that are traced inside the context."""
    found: list[Decision] = []
    with tracing_with(_RECORDS, (*_RECORDS.get(), found)):
        yield found


def choose(wanted: Implementation, call: Call, layer: str | None, exchange: ContextParallel = "auto") -> Decision:
    """Returns the decision for a layer, and records it under its path, if that is given.

    "auto" is the kernel of the platform if it can compute all of the call, else blockwise for rows of BLOCKWISE_FROM
    keys and more, else dense. One query at a time is always dense: it has one row of scores. Programs that check an
    experiment or create its weights (without a path) have no kernel.

    Devices that share a sequence exchange heads if that allows the kernel, else gather keys, or pass them round a ring
    if there are RING_FROM and more; these two are blockwise for rows of any length.

    Raises:
      UsageError: the wanted one cannot compute the call.
    """
    if products_are_counted():
        return Decision(layer or "", "dense")
    is_run, platform = layer is not None and not checked_platform(), target_platform()
    # Only rows of training must have a length that suits the kernel: prompts and texts to score have any.
    passed = {CACHED, WATCHED} if checked_platform() and layer else {CACHED, WATCHED, UNALIGNED}
    _require_possible(wanted, call, exchange, checked_platform() or (platform if is_run else "any"), passed)
    kernel = KERNELS.get(platform) if is_run else None
    obstacles = call.without_kernel(kernel) if kernel else []
    by_others = {WATCHED, *((CACHED, UNALIGNED) if wanted == "splash" else ())}  # with a cache cuDNN has a mask
    if wanted in KERNELS.values() and (not is_run or by_others & {reason for reason, _ in obstacles}):
        wanted = "auto"
    is_split = call.parts > 1 and not call.has_state and wanted != "dense"
    if is_split and exchange == "auto":
        exchange = "ring" if call.keys >= RING_FROM else "all_gather"
        if kernel and wanted in ("auto", kernel) and not obstacles and call.heads_divide:
            exchange = "all_to_all"
        elif wanted in KERNELS.values():
            reason = obstacles[0][0] if obstacles else "the number of heads, which these devices do not divide"
            raise UsageError(
                f"ATTENTION_IMPLEMENTATION = {wanted} cannot compute rows that several devices share because of "
                f"{reason}. Set it to auto."
            )
    if is_split and exchange == "all_to_all" and not call.heads_divide:
        raise UsageError(
            "CONTEXT_PARALLEL = all_to_all splits heads over the devices that share a sequence, which, with those that "
            "split heads already, do not divide their number. Change NUM_HEADS or NUM_KV_HEADS, or set ring."
        )
    moves_keys = is_split and exchange != "all_to_all"
    if moves_keys:
        wanted = "blockwise"
    chosen, no_blocks = wanted, call.without_blocks()
    if wanted == "blockwise" and (no_blocks or call.queries == 1):
        chosen = "dense"
    if wanted == "auto":
        is_long = call.keys >= BLOCKWISE_FROM[platform] and call.queries > 1
        chosen = "blockwise" if is_long and not no_blocks else "dense"
        chosen = kernel if kernel and not obstacles else chosen
    is_exchanged = is_split and (chosen == "blockwise" or not moves_keys)
    parts = call.query_parts() if is_run and chosen == "dense" else 1
    decision = Decision(layer or "", chosen, tuple(obstacles), exchange if is_exchanged else None, parts)
    if layer is not None:
        for record in _RECORDS.get():
            record.append(decision)
    return decision


def _require_possible(
    wanted: Implementation, call: Call, exchange: ContextParallel, platform: str, passed: Collection[str]
) -> None:
    """Raises a UsageError if a platform cannot compute a call as wanted, but for reasons that are passed."""
    if wanted == "blockwise" and call.bias == "matrix":
        obstacle = call.without_blocks()
        raise UsageError(f"ATTENTION_IMPLEMENTATION = blockwise does not support {obstacle}. Set only one of them.")
    if wanted not in KERNELS.values():
        return
    if platform != "any" and KERNELS.get(platform) != wanted:
        needed = next(platform.upper() for platform, kernel in KERNELS.items() if kernel == wanted)
        raise UsageError(f"ATTENTION_IMPLEMENTATION = {wanted} needs a {needed} (got {platform}). Set it to auto.")
    if exchange in ("ring", "all_gather") and call.parts > 1 and not call.has_state:
        raise UsageError(
            f"CONTEXT_PARALLEL = {exchange} moves keys, which ATTENTION_IMPLEMENTATION = {wanted} does not support. "
            "Set one of them to auto."
        )
    reasons = [reason for reason, _ in call.without_kernel(wanted) if reason not in passed]
    if reasons := [reason for reason in reasons if not (wanted == "cudnn" and SEGMENTS in reason)]:  # by a mask
        raise UsageError(f"ATTENTION_IMPLEMENTATION = {wanted} does not support {reasons[0]}. Set only one of them.")


def _has_packed_rows() -> bool:
    """Returns whether cuDNN's kernel takes several segments on this GPU, or on the one that is planned for."""
    return fused_attention_stablehlo.check_compute_capability("9.0")


def description(decisions: Iterable[Decision]) -> str:
    """Returns which layers have which implementation, as `dense in a and b, blockwise by ring in c`.

    It is empty without attention.
    """
    layers: dict[str, list[str]] = {}
    for decision in dict.fromkeys(decisions):
        name = " by ".join(filter(None, [decision.implementation, decision.exchange]))
        places = layers.setdefault(name, [])
        if decision.layer not in places:
            places.append(decision.layer)
    return ", ".join(f"{name} in {_listed(places)}" for name, places in layers.items())


def _listed(names: list[str]) -> str:
    if len(names) > 3:
        return f"{names[0]} and {len(names) - 1} other layers"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
