"""The generic runner: trains, evaluates or samples from any registered experiment.

python -m runners.main --exp=tiny.StdlibTiny --workdir=runs/demo
python -m runners.main --workdir=runs/demo --mode=sample --prompt="def "

`--mode=MODE --help` lists the flags of a mode.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from layers.errors import UsageError, did_you_mean, missing_package
from runners.flags import Parser, check_module_flags, parse_with_modules, prepare_devices, run_app
from runners.machine.huge_pages import use_huge_pages
from runners.machine.terminal import progress_console
from runners.modes import MODES
from runners.options import add_options, fields, from_flags
from runners.request import Request

if TYPE_CHECKING:  # imports jax
    from runners.processes.coordination import ProcessGroup


def mode_module(name: str) -> Any:
    """Returns the module of a mode, which defines `Options` and `run`."""
    return importlib.import_module(f"runners.modes.{name}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed flags: those of all modes, those of the chosen one, and `command`.

    Raises:
      UsageError: an unknown flag or mode, a flag of another mode, or a value of the wrong type.
    """
    began, mode = time.time(), _mode(arguments)
    _refuse_flags_of_other_modes(arguments, mode)
    options = parse_with_modules(partial(mode_parser, mode), arguments)
    chosen = from_flags(mode_module(mode).Options, options)
    if options.workdir is None:
        options.workdir = chosen.default_workdir(options.exp)
    if not options.workdir and (chosen.needs_workdir or options.exp is None):
        raise UsageError("A run folder is needed. Give --workdir=runs/NAME.")
    options.command, options.began = ("python", "-m", "runners.main", *arguments), began
    return options


def _mode(arguments: Sequence[str]) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--mode", nargs="?")
    name = parser.parse_known_args(arguments)[0].mode or "train"
    if name not in MODES:
        raise UsageError(f"Unknown mode '{name}'. {did_you_mean(name, MODES)}")
    return name


def _refuse_flags_of_other_modes(arguments: Sequence[str], mode: str) -> None:
    flags = {other: {field.name: field for field in fields(mode_module(other).Options)} for other in MODES}
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").removeprefix("no-")
        having = [other for other in MODES if name in flags[other]]
        if argument.startswith("--") and having and mode not in having:
            needed = " or ".join(f"--mode={other}" for other in having)
            advice = flags[having[0]][name].metadata["advice"]
            raise UsageError(f"--{name} is a flag of {needed} (got --mode={mode}). {advice}".rstrip())


def mode_parser(mode: str, prog: str = "runners.main") -> Parser:
    """Returns the parser of the flags of a mode, those of all modes included.

    Args:
      mode: the mode.
      prog: the command; if it is not the runner itself, it selects the mode, and --help describes this mode alone.
    """
    module, is_runner = mode_module(mode), prog == "runners.main"
    parser = Parser(prog, __doc__ if is_runner else module.__doc__, with_absl=True)
    add = parser.add_argument
    add("--exp", help="the experiment: family.Class or package.module.Class; by default the one in --workdir")
    add("--mode", default="train", help=f"one of: {', '.join(MODES)}" if is_runner else argparse.SUPPRESS)
    add("--workdir", help="the run folder: checkpoints, metrics, report")
    add("--smoke", action="store_true", help="a small version of the experiment, on the available devices")
    add(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="KNOB=VALUE or task./train./test. config path; repeatable",
    )
    add(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="import a module first; repeatable",
    )
    add("--allow_changes", action="store_true", help="resume although the experiment of the workdir has changed")
    add("--host_devices", type=int, metavar="N", help="N virtual CPU devices in this process")
    add(
        "--tensorboard",
        action=argparse.BooleanOptionalAction,
        help="write TensorBoard events; the default if the extra is installed",
    )
    add("--wandb", metavar="PROJECT", help="log to this Weights & Biases project")
    _add_process_flags(parser)
    group = (f"--mode={mode}", module.__doc__) if is_runner else (mode,)
    add_options(parser.add_argument_group(*group), module.Options)
    return parser


def _add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags by which this process finds the others of its run."""
    add = parser.add_argument_group("several processes (detected on clusters)").add_argument
    add("--coordinator", metavar="HOST:PORT", help="the address of process 0, the same for all processes")
    add("--num_processes", type=int, metavar="N", help="the number of processes that run this command")
    add("--process_id", type=int, metavar="I", help="the index of this process, from 0")
    add("--join_timeout", type=int, default=300, metavar="SECONDS", help="time limit to connect at the start")
    add(
        "--peer_timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="time without a heartbeat after which a process counts as dead",
    )


def run(options: argparse.Namespace, processes: "ProcessGroup | None" = None) -> int:
    """Runs the mode that the flags select; returns the exit code.

    Args:
      options: the flags.
      processes: the processes of the run if this one has joined them; otherwise it joins them by the flags.
    """
    prepare_devices(options.host_devices)
    if options.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise missing_package("--wandb", "wandb", "wandb")
    if options.tensorboard and not all(map(importlib.util.find_spec, ("clu", "tensorflow"))):
        raise missing_package("--tensorboard", "clu (and tensorflow)", "tensorboard")
    options.tensorboard = options.tensorboard is not False  # MetricsLog checks whether it is installed
    with progress_console().status("Importing JAX ..."):  # on a terminal
        importlib.import_module("runners.training.workdir")
    from runners.processes.distributed import joined
    from tasks.storage.files import trouble

    chosen = from_flags(mode_module(options.mode).Options, options)
    joins = {"several_processes": chosen.several_processes, "saves_on_sigterm": chosen.saves_on_sigterm}
    with joined(options, **joins) if processes is None else contextlib.nullcontext(processes) as group:
        if group.several and not chosen.several_processes:
            raise UsageError(f"--mode={options.mode} runs in one process (got {group.count}).")
        with trouble(options.workdir):
            return _run_mode(options, group)
    raise AssertionError  # unreachable: neither context suppresses exceptions


def _run_mode(options: argparse.Namespace, processes: "ProcessGroup") -> int:
    from registry.resolve import resolve, resolve_recorded
    from runners.training.workdir import recorded

    if options.exp is None:
        record = recorded(options.workdir)
        experiment = resolve_recorded(record, options.set, smoke=options.smoke, imports=options.imports)
    else:
        experiment = resolve(options.exp, options.set, smoke=options.smoke, imports=options.imports)
    check_module_flags(options)
    mode = mode_module(options.mode)
    return mode.run(Request(experiment, options, processes), from_flags(mode.Options, options))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; prints a known error as one message and returns its exit code."""
    return run_app(parse, run, arguments)


if __name__ == "__main__":
    use_huge_pages("runners.main")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stdout.flush()
        message = "Interrupted. Saved state is intact; run the same command again to resume."
        print(f"vortaro: {message}", file=sys.stderr, flush=True)
        os._exit(130)  # XLA's threads may be running, and would crash in an orderly shutdown
