"""Command `vortaro`: the commands of the registry, the runner and the launcher under one name."""

import os
import sys
from collections.abc import Sequence

from layers.errors import did_you_mean
from registry.tool import verbs
from registry.tool.verbs import VERBS
from runners.modes import MODES

COMMANDS = {"import": "runners.convert", "export": "runners.convert", "launch": "launch"}
USAGE = f"""vortaro COMMAND ...

  {" ".join(VERBS)}
      the registry: `vortaro list`, `vortaro show tiny.StdlibTiny` (python -m registry)
  {" ".join(MODES)}
      the runner: `vortaro train --exp=tiny.StdlibTiny --workdir=runs/demo` (python -m runners.main --mode=...)
  import export
      weights of other codes (python -m runners.convert)
  launch
      runs on many machines (python -m launch)

`vortaro COMMAND --help` lists the flags of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code.

    Commands of the registry run in this process. The others replace it, because their memory allocator and devices are
    configured when a process starts.
    """
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command in VERBS:
        return verbs.main([command, *rest])
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
    return [COMMANDS[command], *([] if command == COMMANDS[command] else [command]), *rest]
