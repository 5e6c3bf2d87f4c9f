"""Widths and learning rates as they stand on a command line, and experiments of another width."""

import math
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment, cls_key, knobs_set_by


def parse_widths(text: str | None, experiment: Experiment) -> tuple[int, ...]:
    """`64,128,256`; by default one, two and four times the experiment's BASE_WIDTH, or MODEL_DIM where it has none.

    The least default is 64, below which slopes are noise; with Adafactor 128, from where on its moments are factored.

    Raises:
      UsageError: fewer than two widths, one that is none, or an experiment that cannot be made wider.
    """
    cls: Any = type(experiment)
    if not (hasattr(cls, "of_width") and hasattr(cls, "MODEL_DIM")):
        raise UsageError(f"{cls_key(cls)} cannot be made wider: it has no of_width(width), or no MODEL_DIM.")
    if text is None:
        knobs = cls.knobs()
        base = knobs.get("BASE_WIDTH") or cls.MODEL_DIM
        while base < (128 if knobs.get("OPTIMIZER") == "adafactor" else 64):
            base *= 2
        return base, 2 * base, 4 * base
    words = text.split(",")
    for word in words:
        if not word.strip().isdecimal() or int(word) < 1:
            raise UsageError(f"--widths={text}: '{word}' is no width. Say it like --widths=64,128,256.")
        if words.count(word) > 1:
            raise UsageError(f"--widths={text} names {word} twice.")
    if len(words) < 2:
        raise UsageError(f"--widths={text} is one width: two at least can be compared, as in --widths=64,128,256.")
    return tuple(sorted(map(int, words)))


def parse_rates(text: str) -> tuple[float, ...]:
    """`2^-11..2^-5` (each power of two between), or a list like `2^-6,0.01`.

    Raises:
      UsageError: it is neither.
    """
    low, dots, high = text.partition("..")
    if not dots:
        return tuple(sorted({_number(word, text) for word in text.split(",")}))
    first, last = (math.log2(_number(word, text)) for word in (low, high))
    if not (first.is_integer() and last.is_integer()):
        raise UsageError(f"--rates={text}: a range goes from one power of two to another, as in 2^-11..2^-5.")
    if first > last:
        raise UsageError(f"--rates={text}: the lower rate comes first, as in {high}..{low}.")
    return tuple(2.0**power for power in range(int(first), int(last) + 1))


def _number(word: str, text: str) -> float:
    base, power, exponent = word.partition("^")
    try:
        if float(base) > 0 and 0 < (rate := float(base) ** float(exponent) if power else float(base)) < math.inf:
            return rate
    except (ValueError, ArithmeticError):
        pass
    raise UsageError(f"--rates={text}: '{word}' is no rate. Say it like 2^-11..2^-5, or 0.001,0.003,0.01.")


def refuse_settings(experiment: Experiment, flags: dict[str, str]) -> None:
    """Raises a UsageError where --set states a knob that a mode sets by a flag of its own."""
    for knob, flag in flags.items():
        if knob in _said(experiment):
            raise UsageError(f"--set={knob} would be overwritten here: say {flag}.")


def of_width(experiment: Experiment, width: int, **knobs: Any) -> Experiment:
    """The experiment at another width. Also sets those of `knobs` that it has and that --set leaves alone."""
    cls: Any = type(experiment)
    known, said = cls.knobs(), _said(experiment)
    with knobs_set_by("--widths"):
        cls = cls.of_width(width)
    return cls.derive(**{k: v for k, v in knobs.items() if k in known and k not in said})()


def _said(experiment: Experiment) -> set[str]:
    """The knobs and paths that --set states."""
    return {override.partition("=")[0] for override in experiment.overrides}


def rate_text(rate: float) -> str:
    """A learning rate as people write it: 2^-6, or 0.003."""
    power = math.log2(rate)
    return f"2^{power:.0f}" if abs(power - round(power)) < 1e-9 else f"{rate:.4g}"
