"""Checks muP by the activations at several widths over a few updates."""

import dataclasses

from runners.options import option
from runners.request import Request
from runners.widths.flags import WidthOptions, require_counts, require_initial_weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(WidthOptions):
    """Flags of --mode=coord_check."""

    steps: int | None = option("updates at each width; by default 2", advice="Set NUM_STEPS.", default=None)


def run(request: Request, options: Options) -> int:
    """Writes coord_check.json, .png and .html; returns 1 if a slope leaves its band."""
    from runners.widths.coord_check import CoordOptions, coord_check
    from runners.widths.widths import parse_widths, refuse_settings

    require_initial_weights(request.experiment, "coord_check")
    require_counts(seeds=options.seeds, steps=options.steps)
    refuse_settings(request.experiment, {"MODEL_DIM": "--widths"})
    widths = parse_widths(options.widths, request.experiment)
    chosen = CoordOptions(widths=widths, seeds=options.seeds or 1, steps=options.steps or 2)
    return coord_check(request.experiment, request.workdir, chosen)
