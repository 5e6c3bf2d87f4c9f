"""Compiles the update for a machine that is not attached, and reports memory, collectives and step time."""

import dataclasses
from typing import Literal

from layers.errors import UsageError
from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=plan."""

    topology: str | None = option(
        "TPU slices or hosts x GPUs to compile for, with their own compiler; needs no accelerator",
        metavar="v3:8x8|2*v5e:16x16|h100:8x8",
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
    tokens: float | None = option("tokens to train on: prints device-hours and cost", metavar="300e9", default=None)
    price: float | None = option("price of a device for an hour, for the cost of --tokens", default=None)
    mfu: float | None = option("model FLOP/s over the chips', to estimate device-hours from", default=None)
    search: bool = option(
        "find the fastest plan that fits, within the tokens of an update; prints its --set values", default=False
    )
    over: str | None = option(
        "what --search changes (default: all of mesh,batch,remat,zero)", metavar="mesh,batch,remat,zero", default=None
    )
    exhaustive: bool = option("compile all cases of --search, and rank them", default=False)
    write: str | None = option(
        "write a registered class with the knobs that --search has found", metavar="FILE.py[:Class]", default=None
    )
    largest_batch: bool = option("find the largest BATCH_SIZE that fits", default=False)

    def default_workdir(self, exp: str | None) -> str | None:
        """Returns a folder named after the experiment and the machine."""
        machine = (self.topology or self.chip or "cpu").replace(":", "-").replace("*", "x")
        return None if exp is None else f"plans/{exp}-{machine}"


def run(request: Request, options: Options) -> int:
    """Prints the plan and writes plan.json and plan.html; returns the exit code."""
    from runners.planner.budget import Budget
    from runners.planner.machine import Machine
    from runners.planner.plan import plan
    from runners.planner.search.largest_batch import largest_batch
    from runners.planner.search.search import Search, search

    of_search = {"over": options.over, "exhaustive": options.exhaustive, "write": options.write}
    for name, value in of_search.items():
        if value and not options.search:
            raise UsageError(f"--{name} needs --search. Add it, or remove --{name}.")
    if options.search and options.largest_batch:
        raise UsageError("--search and --largest_batch are separate. Run --largest_batch with the --set values found.")
    machine = Machine.named(
        topology=options.topology,
        chip=options.chip,
        virtual_devices=request.flags.host_devices,
        memory_fraction=options.memory_fraction,
    )
    for mode in ("search", "largest_batch"):
        if getattr(options, mode) and options.tokens is not None:
            raise UsageError(f"--tokens has no effect with --{mode}. Remove one of them.")
    budget = Budget.named(options.tokens, options.price, options.mfu, has_chip=machine.chip is not None)
    arguments = (request.experiment, request.workdir, machine, options.plan_step)
    if options.search:
        return search(*arguments, Search(**of_search))
    return largest_batch(*arguments) if options.largest_batch else plan(*arguments, budget)
