"""Plans in the registry tool: of small forms, and the lowering of updates. The planner is imported by the calls.

The tool is the only part of the registry that calls the runners, which are above it.
"""

from collections.abc import Mapping
from typing import Any

from registry.checks import Built
from registry.experiment import Experiment

Plan = Mapping[str, Any]


def start() -> None:
    """Makes JAX use the virtual devices of small forms; call it before anything else uses JAX."""
    from runners.planner.small_form import use_devices

    use_devices()


def small_plan(experiment: Experiment) -> Plan:
    """Returns the plan of the experiment's small form (runners.planner.small_form)."""
    from runners.planner.small_form import small_plan

    return small_plan(experiment)


def check_lowering(experiment: Experiment, built: Built, mesh: Mapping[str, int] | None) -> None:
    """Lowers the update of a valid experiment for TPUs and GPUs (runners.planner.lowering)."""
    from runners.planner.lowering import check_lowering

    check_lowering(experiment, built, mesh)
