"""Finds the best learning rate at several widths."""

import dataclasses

from runners.options import option
from runners.request import Request
from runners.widths.flags import WidthOptions, require_counts, require_initial_weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(WidthOptions):
    """Flags of --mode=sweep."""

    rates: str | None = option(
        "learning rates, a range (the default) or a list",
        metavar="2^-11..2^-5",
        advice="Set LEARNING_RATE.",
        default=None,
    )


def run(request: Request, options: Options) -> int:
    """Writes sweep.json, sweep.png and sweep.html; returns the exit code."""
    from runners.widths.sweep import SweepOptions, sweep
    from runners.widths.widths import parse_rates, parse_widths, refuse_settings

    require_initial_weights(request.experiment, "sweep")
    require_counts(seeds=options.seeds)
    refuse_settings(request.experiment, {"MODEL_DIM": "--widths", "LEARNING_RATE": "--rates"})
    widths, rates = parse_widths(options.widths, request.experiment), parse_rates(options.rates or "2^-11..2^-5")
    chosen = SweepOptions(widths=widths, rates=rates, seeds=options.seeds or 1)
    return sweep(request.experiment, request.workdir, chosen)
