"""Gates of the coordinate check: slopes of activations against width, and the bands they must lie in."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Largest absolute slopes under muP at widths 64, 128, 256 over four seeds were 0.21 for changes, 0.03 for changes of
# the embedding and 0.10 for sizes at the start. Under the standard parametrization, changes had slopes of at least
# 0.65.
CHANGE, EMBEDDING_CHANGE, SIZE, SCORES, ENDS = 0.35, 0.15, 0.20, 0.30, 0.10
FIRST_LAYER = ("query_bsnd", "key_bskd", "value_bskd", "value_bskf", "mixer_out")
LOGITS = "logits_bsv"
HEAD_PART = "logits_by_head_bsv"  # the part of the change of logits that is due to updates of the head
AT_START = (*FIRST_LAYER, "hidden_bsf", "ffn_out", "residual_bsm")

Slopes = Mapping[str, Mapping[str, Sequence[float | None]]]  # activation -> "size" or "change" -> by step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """A slope and its band."""

    activation: str
    statistic: str  # "size" or "change"
    step: int
    slope: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        """Returns whether the slope is in its band."""
        return self.low <= self.slope <= self.high

    @property
    def beyond(self) -> float:
        """Distance to the band; 0 inside, infinite for NaN."""
        return math.inf if math.isnan(self.slope) else max(self.low - self.slope, self.slope - self.high, 0.0)


def slope(widths: Sequence[int], values: Any) -> float | None:
    """Returns the slope of log2(value) against log2(width) by least squares.

    None if all values are 0; NaN, which is in no band, if some are 0 or not finite.
    """
    values = np.asarray(values, float)
    if np.all(values == 0):
        return None
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        return math.nan
    return float(np.polyfit(np.log2(widths), np.log2(values), 1)[0])


def gates(slopes: Slopes, logits_slope: float, steps: int) -> Iterator[Gate]:
    """Yields the slopes that have a band; a statistic that is 0 (zero initial values) has none.

    Sizes before the first update: activations of blocks, scores of the first layer, the embedding; logits, whose slope
    depends on the parametrization. Changes after each update: the embedding, projections and mixer of the first layer,
    every feed-forward layer and the last residual; after the last update that of logits. Changes of attention scores
    and of projections of later layers are too noisy at few widths and seeds, as is that of logits by earlier updates.

    The change of logits is the sum of (W - W_0) h and W_0 (h - h_0), with the head W and features h. If initial logits
    W_0 h_0 decrease with the width, so does the second part, until it shows how far W_0 and h - h_0 are aligned; the
    first one alone is judged then.
    """
    changes = HEAD_PART if logits_slope < 0 else LOGITS
    last = max((layer for layer, _ in map(parts, slopes) if layer is not None), default=0)
    for name, kinds in slopes.items():
        layer, short = parts(name)
        if short == changes:
            yield from _gate(name, kinds, "change", steps, (-CHANGE, CHANGE))
        if short == LOGITS:
            yield from _gate(name, kinds, "size", 0, (logits_slope - ENDS, logits_slope + ENDS))
        elif short == "embedded":
            yield from _gate(name, kinds, "size", 0, (-ENDS, ENDS))
        elif layer == 0 and short == "scores":
            yield from _gate(name, kinds, "size", 0, (-SCORES, SCORES))
        elif layer is not None and short in AT_START:
            yield from _gate(name, kinds, "size", 0, (-SIZE, SIZE))
        for step in range(1, steps + 1):
            if short == "embedded":
                yield from _gate(name, kinds, "change", step, (-EMBEDDING_CHANGE, EMBEDDING_CHANGE))
            elif (
                (layer == 0 and short in FIRST_LAYER)
                or (layer is not None and short == "ffn_out")
                or (layer == last and short == "residual_bsm")
            ):
                yield from _gate(name, kinds, "change", step, (-CHANGE, CHANGE))


def _gate(
    name: str, kinds: Mapping[str, Sequence[float | None]], kind: str, step: int, band: tuple[float, float]
) -> Iterator[Gate]:
    value = kinds[kind][step]
    if value is not None:
        yield Gate(activation=name, statistic=kind, step=step, slope=value, low=band[0], high=band[1])


def parts(name: str) -> tuple[int | None, str]:
    """Splits a name: `layer 2 mixer/query_bsnd` becomes (2, "query_bsnd")."""
    words = name.split(" ")
    layer = int(words[1]) if words[0] == "layer" else None
    return layer, words[-1].rpartition("/")[2]
