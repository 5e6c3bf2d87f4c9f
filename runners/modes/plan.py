"""Compiles the update for a machine that is not attached, and reports memory, collectives and step time."""

import dataclasses
from typing import Literal

from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=plan."""

    topology: str | None = option(
        "a TPU slice or hosts x GPUs to compile for, with their own compiler; needs no accelerator",
        metavar="v3:8x8|h100:8x8",
        default=None,
    )
    chip: str | None = option(
        "chip whose memory and speed apply to virtual CPU devices; a topology implies its own", default=None
    )
    memory_fraction: float | None = option(
        "share of a GPU's memory that JAX preallocates (default: 0.75), as in XLA_PYTHON_CLIENT_MEM_FRACTION",
        default=None,
    )
    plan_step: Literal["train", "decode"] = option("one update, or one token after a context", default="train")
    sweep: bool = option(
        "plan every mesh shape and remat policy, and rank them", advice="Learning rates: --mode=sweep.", default=False
    )

    def default_workdir(self, exp: str | None) -> str | None:
        """Returns a folder named after the experiment and the machine."""
        return None if exp is None else f"plans/{exp}-{self.topology or self.chip or 'cpu'}".replace(":", "-")


def run(request: Request, options: Options) -> int:
    """Prints the plan and writes plan.json and plan.html; returns the exit code."""
    from runners.planner.machine import Machine
    from runners.planner.plan import plan
    from runners.planner.search.mesh_search import rank_meshes

    machine = Machine.named(
        topology=options.topology,
        chip=options.chip,
        virtual_devices=request.flags.host_devices,
        memory_fraction=options.memory_fraction,
    )
    run_plan = rank_meshes if options.sweep else plan
    return run_plan(request.experiment, request.workdir, machine, options.plan_step)
