"""Exceptions with a one-sentence message for the user, and the exit code of each."""

import contextlib
import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from layers.roots import FOLDER

LONGEST = 4000  # characters of a message
# Control characters, which terminals execute; line and paragraph ends; changes of direction; halves of surrogate pairs.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Returns a text on one line, with escaped control characters, at most LONGEST characters and a mark of the cut.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    short = text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], short)


class VortaroError(Exception):
    """The run failed for the reason in the message; the process exits with code 1.

    The message may quote files and arguments: control characters in it are escaped, and its middle is left out if it is
    longer than LONGEST.
    """

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UsageError(VortaroError):
    """The request is invalid (a name, a value, a shape); the process exits with code 2."""

    exit_code = 2


class SpecError(UsageError):
    """A partition spec does not fit its weight or its mesh, is missing, or is superfluous."""


@contextlib.contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Puts `where: ` in front of the messages of usage errors inside; an empty `where` changes nothing."""
    try:
        yield
    except UsageError as error:
        if not where:
            raise
        raise type(error)(f"{where}: {error}") from error.__cause__


def file_line(filename: str, line: int) -> str:
    """Returns a position in source text, `my_models.py:12`.

    Files in the working folder are relative to it, and files of Vortaro to the folder of its packages.
    """
    inside = (os.path.relpath(filename, folder) for folder in (os.getcwd(), FOLDER))
    return f"{next((path for path in inside if not path.startswith('..')), filename)}:{line}"


def first_line(error: BaseException | str, most: int = 200) -> str:
    """Returns the first line of an error without its full stop, at most `most` characters; of an OSError, its strerror.

    >>> first_line(ValueError("bad value.\nMore about it."))
    'bad value'
    """
    nameless = "it needs more memory than there is" if isinstance(error, MemoryError) else type(error).__name__
    text = str(getattr(error, "strerror", None) or error).strip() or nameless
    return text.partition("\n")[0][:most].rstrip(".! ")


def did_you_mean(name: str, valid: Iterable[str], most: int = 3) -> str:
    """Returns the closing sentence of an error, with the valid names nearest to `name`.

    >>> did_you_mean("rmpsprop", ["adamw", "rmsprop"])
    "Did you mean 'rmsprop'?"
    """
    valid = sorted(set(valid))
    lowered = {v.lower(): v for v in valid}
    near = [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=0.5)]
    longer = [v for v in valid if name and v.lower().startswith(name.lower())]
    near = [*longer, *(n for n in near if n not in longer)][:most]
    if near:
        return "Did you mean " + " or ".join(repr(n) for n in near) + "?"
    if not valid:
        return "No valid names exist."
    shown = ", ".join(repr(v) for v in valid[:8])
    return f"Valid: {shown}{', ...' if len(valid) > 8 else ''}."


def missing_package(subject: str, package: str, extra: str) -> UsageError:
    """Returns the error for a feature that needs a package of one of this project's extras.

    >>> missing_package("--wandb", "wandb", "wandb")
    UsageError("--wandb needs the package wandb. Run pip install -c constraints.txt -e '.[wandb]'.")
    """
    return UsageError(f"{subject} needs the package {package}. Run pip install -c constraints.txt -e '.[{extra}]'.")


def unknown_flag(unknown: Sequence[str], known: Collection[str]) -> UsageError:
    """Returns the error for a command line with unknown flags, with advice on the first of them.

    Args:
      unknown: the remaining arguments, including values that follow their flags.
      known: the command's flags.
    """
    name, _, value = unknown[0].partition("=")
    is_setting = re.match(r"--(?:[A-Z][A-Z0-9_]*(?:\.|$)|(?:task|train|test)\.)", name)  # a knob or a config path
    if "--set" in known and is_setting and name.lower() not in known:
        value = value or next(iter(unknown[1:]), "VALUE")
        advice = f"Knobs and config fields are set by --set: --set={name.removeprefix('--')}={value}."
    else:
        advice = did_you_mean(name, known)
    return UsageError(f"Unknown flag '{unknown[0]}'. {advice}")
