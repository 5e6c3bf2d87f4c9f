"""Command lines: flags with one-line errors, absl's flags and logging, virtual devices, errors as exit codes."""

import argparse
import contextlib
import gc
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import absl.logging
from absl import app, flags
from absl.flags import argparse_flags

from layers.errors import UsageError, VortaroError, unknown_flag
from runners.machine.virtual_devices import make_virtual_devices, skip_absent_gpus, use_threads_for

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# The prefixes of asyncio's messages if concurrent writes fail together: one is awaited, and asyncio logs the others.
OF_OTHER_WRITES = re.compile(r"\w+ exception was never retrieved|unhandled exception during asyncio\.run\(\) shutdown")


# Log records with tracebacks that orbax writes for exceptions which `Checkpoints` raises again as one message.
RAISED_AGAIN = (
    "_SignalingThread.run() raised an exception",
    "Handler Commit operations or the Commit callback in background save thread",
    "Failed to write metadata=",
    "Failed to update metadata=",
    "Checkpointer failed: one or more items may not be finalized",
    "[wait_until_finished] Save Finalize thread",
)

EPILOG = """Flags of absl are accepted too (--verbosity=1 logs debug messages, 0 info, -1 warnings, -2 errors), as
are absl flags defined by modules of --import. --helpfull lists them."""

_given: set[str] = set()  # absl flags that the last command line of this process set


class Parser(argparse_flags.ArgumentParser):
    """A parser with one-line errors that name the closest flag; it accepts absl flags if `with_absl`."""

    def __init__(self, prog: str, description: str | None, *, with_absl: bool = False):
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=EPILOG if with_absl else None,
            allow_abbrev=False,
            conflict_handler="resolve",  # our flags replace those of absl, which are added first
            inherited_absl_flags=flags.FLAGS if with_absl else None,
        )

    def error(self, message: str):
        raise UsageError(f"{message}. `python -m {self.prog} --help` lists all flags.")

    def parse_some(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Returns the flags and the unknown arguments. Sets absl flags to their values, or defaults if not given.

        Raises:
          UsageError: a value of the wrong type.
        """
        for name in _given & set(flags.FLAGS):
            flags.FLAGS[name].unparse()
        before = {name: flags.FLAGS[name].present for name in flags.FLAGS}
        try:
            return self.parse_known_args(arguments)
        except flags.Error as error:
            self.error(str(error).rstrip("."))
        finally:
            _given.clear()
            _given.update(name for name, count in before.items() if flags.FLAGS[name].present > count)

    def parse_known(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Returns the flags.

        Raises:
          UsageError: an unknown flag, or a value of the wrong type.
        """
        options, unknown = self.parse_some(arguments)
        if unknown:
            raise unknown_flag(unknown, self._known())
        return options

    def _known(self) -> list[str]:
        """Returns the flags that an error message may suggest."""
        known = [flag for action in self._actions if action.help != argparse.SUPPRESS for flag in action.option_strings]
        if self._inherited_absl_flags is not None:  # of absl's own flags, only the one in EPILOG
            by_module = flags.FLAGS.flags_by_module_dict().items()
            known += ["--verbosity", *(f"--{f.name}" for m, of in by_module if not m.startswith("absl.") for f in of)]
        return known


def parse_with_modules(parser: Callable[[], Parser], arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the flags of a command; parses the absl flags defined by modules of its --import too.

    Only a command line that sets or lists such flags imports the modules here, before processes have joined.

    Raises:
      UsageError: an unknown flag, a value of the wrong type, or a module that cannot be imported.
    """
    known = [argument for argument in arguments if argument != "--helpfull"]
    options, unknown = parser().parse_some(known)
    if options.imports and (unknown or len(known) < len(arguments)):
        from registry.resolve import load

        prepare_devices(options.host_devices)  # a module may ask for devices
        for module in options.imports:
            load(module)
    return parser().parse_known(arguments)


def given_module_flags() -> list[str]:
    """Returns the absl flags set by the command line, without those of absl itself: `--name=value`."""
    flag_of = flags.FLAGS
    own = (name for name in sorted(_given) if not str(flag_of.find_module_defining_flag(name)).startswith("absl."))
    return [f"--{name}={flag_of[name].value}" for name in own]


def check_module_flags(options: argparse.Namespace) -> None:
    """Raises a UsageError if absl flags of imported modules lack a value or clash with flags of the command."""
    defined = flags.FLAGS.flags_by_module_dict()
    for module in options.imports:
        for flag in defined.get(module, ()):
            if hasattr(options, flag.name):
                raise UsageError(f"The absl flag '{flag.name}' of {module} is also a flag of this command. Rename it.")
    try:
        flags.FLAGS.validate_all_flags()
    except flags.Error as error:
        raise UsageError(f"{str(error).rstrip('.')}.") from error


def prepare_devices(count: int | None) -> None:
    """Creates `count` virtual CPU devices (None: uses the existing devices); limits logs of orbax and absent GPUs."""
    _quiet_orbax()
    skip_absent_gpus()
    if count is not None:
        if count < 1:
            raise UsageError(f"--host_devices must be at least 1 (got {count}).")
        make_virtual_devices(count)
        use_threads_for(count)


def _quiet_orbax() -> None:
    """Drops log records of orbax about errors that the program itself reports; --verbosity shows other warnings."""
    log = logging.getLogger("absl")
    if not flags.FLAGS["verbosity"].present:
        absl.logging.set_verbosity(absl.logging.WARNING)
    log.addFilter(_is_shown)
    logging.getLogger("asyncio").addFilter(_is_no_other_write)
    before = sys.unraisablehook

    def show(unraisable: "UnraisableHookArgs") -> None:
        # A write that fails closes the event loop to which other writes of its thread would report.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    if getattr(before, "__qualname__", None) != show.__qualname__:
        sys.unraisablehook = show


def _is_shown(record: logging.LogRecord) -> bool:
    if record.exc_info and any(known in record.getMessage() for known in RAISED_AGAIN):
        return False
    # Orbax warns about each checkpoint that is opened for reading.
    is_asked = bool(flags.FLAGS["verbosity"].present)
    return is_asked or record.levelno >= logging.ERROR or "/orbax/" not in record.pathname


def _is_no_other_write(record: logging.LogRecord) -> bool:
    return not OF_OTHER_WRITES.match(record.getMessage())


def exit_code(run: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Runs a command on its arguments; prints a known error as one message and returns its exit code."""
    try:
        return run(sys.argv[1:] if arguments is None else arguments)
    except VortaroError as error:
        print(f"vortaro: {error}", file=sys.stderr)
        return error.exit_code


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes Python search for garbage less often inside: imports and traces create many objects that stay.

    The searches took 0.4 of the 4 seconds before the first update of a small run. Training itself creates few.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run_app(
    parse: Callable[[Sequence[str]], argparse.Namespace],
    run: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
) -> int:
    """Parses arguments and runs a command under absl.app, any number of times in a process; returns its exit code."""

    def work(given: Sequence[str]) -> int:
        try:
            with _rare_collections():
                app.run(run, argv=[sys.argv[0], *given], flags_parser=lambda argv: parse(argv[1:]))
        except SystemExit as ended:
            if isinstance(ended.code, int):
                return ended.code
            raise
        raise AssertionError  # unreachable: app.run raises SystemExit

    return exit_code(work, arguments)
