"""What commands share: flags whose complaints are one sentence, virtual devices, errors as exit codes."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from layers.errors import UsageError, VortaroError, did_you_mean
from runners.virtual_devices import make_virtual_devices

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# What asyncio begins with where writes run side by side and fail together: one is waited for, and shown are the others.
OF_OTHER_WRITES = ("Task exception was never retrieved", "unhandled exception during asyncio.run() shutdown")


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence, with the closest flag."""

    def __init__(self, prog: str, description: str | None):
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str):
        raise UsageError(f"{message}. `python -m {self.prog} --help` lists all flags.")

    def parse_known(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags.

        Raises:
          UsageError: an unknown flag, or a value of the wrong type.
        """
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            raise UsageError(f"There is no flag '{unknown[0]}'. {did_you_mean(unknown[0].partition('=')[0], flags)}")
        return options


def prepare_devices(count: int | None) -> None:
    """Makes so many virtual CPU devices; None leaves those that are there."""
    _quiet_orbax()
    if count is not None:
        if count < 1:
            raise UsageError(f"--host_devices={count} must be at least 1.")
        make_virtual_devices(count)


def _quiet_orbax() -> None:
    """Lets orbax say less: what a save raises is raised again where the save is waited for, and said there."""
    log, before = logging.getLogger("absl"), sys.unraisablehook
    log.setLevel(logging.ERROR)
    log.addFilter(lambda record: not record.exc_info)
    logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith(OF_OTHER_WRITES))

    def show(unraisable: "UnraisableHookArgs") -> None:
        # A write that fails leaves others of its thread without the event loop they would report to.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = show


def exit_code(run: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Runs a command on its arguments; a known error ends in one sentence and its exit code."""
    try:
        return run(sys.argv[1:] if arguments is None else arguments)
    except VortaroError as error:
        print(f"vortaro: {error}", file=sys.stderr)
        return error.exit_code
