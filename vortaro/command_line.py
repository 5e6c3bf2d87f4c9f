"""Command `vortaro`: the commands of the registry, the runner and the launcher under one name."""

import os
import sys
from collections.abc import Mapping, Sequence

from layers.errors import did_you_mean
from registry.tool import command_line
from registry.tool.command_line import VERBS
from runners.modes import MODES, meaning

COMMANDS = {  # name: its module, and its meaning
    "import": ("runners.convert", "Imports weights of another code base into a run folder."),
    "export": ("runners.convert", "Exports the weights of a run folder to the format of another code base."),
    "launch": ("launch", "Starts runs on many machines: Slurm, Open MPI, Kubernetes, Cloud TPU."),
}


def _lines(meanings: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<14}{text}" for name, text in meanings.items())


def usage() -> str:
    """Returns the text of `vortaro --help`; reads the source of every mode."""
    return f"""vortaro COMMAND ...

The registry: `vortaro list`, `vortaro show tiny.StdlibTiny` (python -m registry)
{_lines({name: verb.meaning for name, verb in VERBS.items()})}

The runner: `vortaro train --exp=tiny.StdlibTiny --workdir=runs/demo` (python -m runners.main --mode=...)
{_lines({mode: meaning(mode) for mode in MODES})}

Weights of other codes (python -m runners.convert), and many machines (python -m launch)
{_lines({name: text for name, (_, text) in COMMANDS.items()})}

`vortaro COMMAND --help` lists the flags of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code.

    Commands of the registry run in this process. The others replace it, because their memory allocator and devices are
    configured when a process starts.
    """
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if command in ("-h", "--help"):
        print(usage())
        return 0
    if command in VERBS:
        return command_line.main([command, *rest])
    if command in MODES and {"-h", "--help"} & set(rest):
        from runners.main import mode_parser

        print(mode_parser(command, f"vortaro {command}").format_help())
        return 0
    if (module := module_of(command, rest)) is None:
        print(f"vortaro: Unknown command '{command}'. {did_you_mean(command, names())}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", *module])


def names() -> tuple[str, ...]:
    """Returns all commands."""
    return (*VERBS, *MODES, *COMMANDS)


def module_of(command: str, rest: Sequence[str]) -> list[str] | None:
    """Returns the arguments of `python -m` for a command of another module; None for an unknown command."""
    if command in MODES:
        return ["runners.main", f"--mode={command}", *rest]
    if command not in COMMANDS:
        return None
    module = COMMANDS[command][0]
    return [module, *([] if command == module else [command]), *rest]
