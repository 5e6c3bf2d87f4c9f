"""Parsing of widths and learning rates of the command line, and experiments of another width."""

import math
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment, cls_key, knobs_set_by


def parse_widths(text: str | None, experiment: Experiment) -> tuple[int, ...]:
    """Parses `64,128,256`; by default 1, 2 and 4 times the experiment's BASE_WIDTH, or MODEL_DIM if it has none.

    The smallest default is 64, below which slopes are noise; with Adafactor 128, from which its moments are factored.

    Raises:
      UsageError: fewer than two widths, a malformed width, or an experiment that has no other width.
    """
    cls: Any = type(experiment)
    if not (hasattr(cls, "of_width") and hasattr(cls, "MODEL_DIM")):
        raise UsageError(f"{cls_key(cls)} has no other widths: of_width(width) or MODEL_DIM is missing.")
    if text is None:
        knobs = cls.knobs()
        base = knobs.get("BASE_WIDTH") or cls.MODEL_DIM
        while base < (128 if knobs.get("OPTIMIZER") == "adafactor" else 64):
            base *= 2
        return base, 2 * base, 4 * base
    words = text.split(",")
    for word in words:
        if not word.strip().isdecimal() or int(word) < 1:
            raise UsageError(f"--widths must be a list of integers like 64,128,256 (got '{word}' in {text}).")
        if words.count(word) > 1:
            raise UsageError(f"--widths must not repeat a width (got {word} twice in {text}).")
    if len(words) < 2:
        raise UsageError(f"--widths must have at least two widths, like 64,128,256 (got {text}).")
    return tuple(sorted(map(int, words)))


def parse_rates(text: str) -> tuple[float, ...]:
    """Parses a range `2^-11..2^-5` of powers of two, or a list like `2^-6,0.01`.

    Raises:
      UsageError: `text` is neither.
    """
    low, dots, high = text.partition("..")
    if not dots:
        return tuple(sorted({_number(word, text) for word in text.split(",")}))
    first, last = (math.log2(_number(word, text)) for word in (low, high))
    if not (first.is_integer() and last.is_integer()):
        raise UsageError(f"--rates must be a range between powers of two, like 2^-11..2^-5 (got {text}).")
    if first > last:
        raise UsageError(f"--rates must have the lower rate first (got {text}). Set --rates={high}..{low}.")
    return tuple(2.0**power for power in range(int(first), int(last) + 1))


def _number(word: str, text: str) -> float:
    base, power, exponent = word.partition("^")
    try:
        if float(base) > 0 and 0 < (rate := float(base) ** float(exponent) if power else float(base)) < math.inf:
            return rate
    except (ValueError, ArithmeticError):
        pass
    raise UsageError(f"--rates must be positive numbers like 2^-11..2^-5 or 0.001,0.003,0.01 (got '{word}' in {text}).")


def refuse_settings(experiment: Experiment, flags: dict[str, str]) -> None:
    """Raises a UsageError if --set sets a knob that the mode sets by its own flag."""
    for knob, flag in flags.items():
        if knob in _overridden(experiment):
            raise UsageError(f"--set={knob} has no effect in this mode, which sets it itself. Use {flag}.")


def of_width(experiment: Experiment, width: int, **knobs: Any) -> Experiment:
    """Returns the experiment at another width, with those of `knobs` that it has and that --set does not set."""
    cls: Any = type(experiment)
    known, overridden = cls.knobs(), _overridden(experiment)
    with knobs_set_by("--widths"):
        cls = cls.of_width(width)
    return cls.derive(**{k: v for k, v in knobs.items() if k in known and k not in overridden})()


def _overridden(experiment: Experiment) -> set[str]:
    """Returns the knobs and paths that --set sets."""
    return {override.partition("=")[0] for override in experiment.overrides}


def rate_text(rate: float) -> str:
    """Formats a learning rate: 2^-6 for powers of two, else 0.003."""
    power = math.log2(rate)
    return f"2^{power:.0f}" if abs(power - round(power)) < 1e-9 else f"{rate:.4g}"
