"""Rendering of templates to files; a missing or superfluous value is an error."""

import json
import shlex
import string
from collections.abc import Sequence
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


class Verbatim(str):
    """Text that is inserted into a file without quoting."""


class _Template(string.Template):
    delimiter = "%%"


def render(template: str, **values: object) -> str:
    """Returns a template with its placeholders replaced: values are quoted for the shell, or as JSON in .yaml files.

    Raises:
      ValueError: a placeholder lacks a value, a value lacks a placeholder, or a `%%` starts no placeholder.
    """
    found = _Template((TEMPLATES / template).read_text())
    if not found.is_valid() or set(found.get_identifiers()) != set(values):
        raise ValueError(f"{template} needs values of {found.get_identifiers()} (got {sorted(values)}).")
    quoted = json.dumps if template.endswith(".yaml") else _shell
    return found.substitute({key: v if isinstance(v, Verbatim) else quoted(v) for key, v in values.items()})


def _shell(value: object) -> str:
    return shlex.join(value) if isinstance(value, list | tuple) else shlex.quote(str(value))


def script(template: str, **values: object) -> str:
    """Returns a shell script: a template that starts with the prologue of all scripts."""
    return render(template, prologue=Verbatim((TEMPLATES / "prologue.sh").read_text().rstrip()), **values)


def steps(tool: str, where: str, commands: Sequence[Sequence[str]]) -> str:
    """Returns a script that runs commands in order; `where` is the advice to print if the tool is missing."""
    lines = Verbatim("\n".join("run " + shlex.join(command) for command in commands))
    return script("steps.sh", tool=tool, where=where, commands=lines)


def write(folder: Path, name: str, text: str) -> Path:
    """Writes a file into the folder of the launch; prints and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / name
    path.write_text(text)
    print(f"Wrote {path}", flush=True)
    return path
