"""Templates to files. Strict: what a template does not name, or is not given, is an error."""

import json
import shlex
import string
from collections.abc import Sequence
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


class Verbatim(str):
    """Text that goes into a file as it stands."""


class _Template(string.Template):
    delimiter = "%%"


def render(template: str, **values: object) -> str:
    """A template with its places filled: words of shell are quoted, in .yaml files JSON stands for values.

    Raises:
      ValueError: a place has no value, a value no place, or a `%%` is no place.
    """
    found = _Template((TEMPLATES / template).read_text())
    if not found.is_valid() or set(found.get_identifiers()) != set(values):
        raise ValueError(f"{template} has the places {found.get_identifiers()}, and was given {sorted(values)}.")
    quoted = json.dumps if template.endswith(".yaml") else _shell
    return found.substitute({key: v if isinstance(v, Verbatim) else quoted(v) for key, v in values.items()})


def _shell(value: object) -> str:
    return shlex.join(value) if isinstance(value, list | tuple) else shlex.quote(str(value))


def script(template: str, **values: object) -> str:
    """A shell script: a template that begins with what all scripts have in common."""
    return render(template, prologue=Verbatim((TEMPLATES / "prologue.sh").read_text().rstrip()), **values)


def steps(tool: str, where: str, commands: Sequence[Sequence[str]]) -> str:
    """A script that runs commands one after the other; `where` says in a few words who has the tool."""
    lines = Verbatim("\n".join("run " + shlex.join(command) for command in commands))
    return script("steps.sh", tool=tool, where=where, commands=lines)


def write(folder: Path, name: str, text: str) -> Path:
    """Writes a file into the launch's folder; returns its path, for all to see."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / name
    path.write_text(text)
    print(f"Wrote {path}", flush=True)
    return path
