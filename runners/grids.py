"""Widths and learning rates as they stand on a command line, and experiments of another width."""

import math
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment, cls_key


def parse_widths(text: str | None, experiment: Experiment) -> tuple[int, ...]:
    """`64,128,256`; by default one, two and four times the experiment's D_BASE, or MODEL_DIM where it has none.

    With Adafactor the least is 128, from where on its second moments are factored.

    Raises:
      UsageError: fewer than two different whole numbers, or an experiment without a width.
    """
    cls: Any = type(experiment)
    if not (hasattr(cls, "of_width") and hasattr(cls, "MODEL_DIM")):
        raise UsageError(
            f"{cls_key(cls)} has no method of_width(width), or no knob MODEL_DIM: it cannot be made wider."
        )
    if text is None:
        knobs = cls.knobs()
        base = knobs.get("D_BASE") or cls.MODEL_DIM
        while knobs.get("OPTIMIZER") == "adafactor" and base < 128:
            base *= 2
        return base, 2 * base, 4 * base
    try:
        widths = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        widths = ()
    if len(widths) < 2 or widths[0] < 1:
        raise UsageError(f"--widths={text} should name at least two widths, as in --widths=64,128,256.")
    return widths


def parse_rates(text: str) -> tuple[float, ...]:
    """`2^-11..2^-5` (each power of two between), or a list like `2^-6,0.01`.

    Raises:
      UsageError: it is neither.
    """
    sentence = f"--rates={text} should read like 2^-11..2^-5 or 0.001,0.003,0.01."
    try:
        low, dots, high = text.partition("..")
        if not dots:
            rates = sorted({_number(word) for word in text.split(",")})
        else:
            first, last = (math.log2(_number(word)) for word in (low, high))
            if first > last or not (first.is_integer() and last.is_integer()):
                raise UsageError(sentence)
            rates = [2.0**power for power in range(int(first), int(last) + 1)]
    except (ValueError, ArithmeticError) as error:
        raise UsageError(sentence) from error
    if not all(0 < rate < math.inf for rate in rates):
        raise UsageError(sentence)
    return tuple(rates)


def _number(word: str) -> float:
    base, power, exponent = word.partition("^")
    if float(base) <= 0:
        raise ValueError(word)
    return float(base) ** float(exponent) if power else float(base)


def of_width(experiment: Experiment, width: int, **knobs: Any) -> Experiment:
    """The experiment so wide, and with these knobs as well where it has them and --set does not say otherwise."""
    cls: Any = type(experiment)
    known = cls.knobs()
    said = {override.partition("=")[0] for override in cls.overrides}
    return cls.of_width(width).derive(**{k: v for k, v in knobs.items() if k in known and k not in said})()


def rate_text(rate: float) -> str:
    """A learning rate as people write it: 2^-6, or 0.003."""
    power = math.log2(rate)
    return f"2^{power:.0f}" if abs(power - round(power)) < 1e-9 else f"{rate:.4g}"
