"""Slopes of activations against width, and the bands that they are held to."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Widest slopes under muP at widths 64, 128, 256 over four seeds were 0.21 for changes, 0.03 for changes of the
# embedding and 0.10 for sizes at the start; under the standard parametrization changes grew with at least 0.65.
CHANGE, EMBEDDING_CHANGE, SIZE, SCORES, ENDS = 0.35, 0.15, 0.20, 0.30, 0.10
FIRST_LAYER = ("query_bsnd", "key_bskd", "value_bskd", "value_bskf", "mixer_out")
AT_START = (*FIRST_LAYER, "hidden_bsf", "ffn_out", "residual_bsm")

Slopes = Mapping[str, Mapping[str, Sequence[float | None]]]  # activation -> "size" or "change" -> by step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """One slope that is held to a band."""

    activation: str
    statistic: str  # "size" or "change"
    step: int
    slope: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        """Is the slope in its band."""
        return self.low <= self.slope <= self.high

    @property
    def beyond(self) -> float:
        """How far outside."""
        return math.inf if math.isnan(self.slope) else max(self.low - self.slope, self.slope - self.high, 0.0)


def slope(widths: Sequence[int], values: Any) -> float | None:
    """The slope of log2(value) against log2(width) by least squares.

    None where the value is 0 at every width; NaN, which is in no band, where it is at some, or is not finite.
    """
    values = np.asarray(values, float)
    if np.all(values == 0):
        return None
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        return math.nan
    return float(np.polyfit(np.log2(widths), np.log2(values), 1)[0])


def judge(slopes: Slopes, logits_slope: float, steps: int) -> Iterator[Gate]:
    """The slopes that are held to a band; a statistic that is 0 (zero initial values) has none.

    Sizes before the first update: activations of blocks, the first layer's scores, the embedding; logits, by what the
    parametrization says of them. Changes behind each update: the embedding, the first layer's projections and mixer,
    every feed-forward layer's and the last residual. Changes of attention scores, and of what later layers project, are
    too noisy at few widths and seeds; so is the change of logits by any update but the last, which may fall as fast as
    logits do at the start: what changed features make of initial weights is part of it.
    """
    last = max((layer for layer, _ in map(parts, slopes) if layer is not None), default=0)
    for name, kinds in slopes.items():
        layer, short = parts(name)
        if short == "logits_bsv":
            yield from _gate(name, kinds, "size", 0, (logits_slope - ENDS, logits_slope + ENDS))
            yield from _gate(name, kinds, "change", steps, (min(-CHANGE, logits_slope), CHANGE))
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
    found = kinds[kind][step]
    if found is not None:
        yield Gate(activation=name, statistic=kind, step=step, slope=found, low=band[0], high=band[1])


def parts(name: str) -> tuple[int | None, str]:
    """`layer 2 mixer/query_bsnd` as (2, "query_bsnd")."""
    words = name.split(" ")
    layer = int(words[1]) if words[0] == "layer" else None
    return layer, words[-1].rpartition("/")[2]
