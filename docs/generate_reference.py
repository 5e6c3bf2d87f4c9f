"""Writes the reference pages of the site: command lines, knobs of each template, Python modules (`make docs`)."""

import contextlib
import importlib
import inspect
import io
import pkgutil

import mkdocs_gen_files

from registry import templates
from registry.experiment import Experiment, doc_line
from registry.tool.knob_docs import meanings
from registry.tool.verbs import USAGE
from registry.values import show, show_type
from runners.main import _parser
from runners.modes import MODES

MODULES = (
    "vortaro.api",
    "vortaro.view",
    "vortaro.run",
    "vortaro.tables",
    "registry.experiment",
    "layers.specs",
    "layers.weights.weight",
    "layers.weights.initializers",
    "tasks.task",
    "tasks.weight_table",
    "tasks.inputs.indexed",
    "tasks.inputs.sources.documents",
    "tasks.vocabularies.vocabulary",
)


def write_commands() -> None:
    """The help of each command line."""
    parts = [f"# Command lines\n\n## The registry\n\n```text\n{USAGE}\n```\n\n## The runner\n"]
    for mode in MODES:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            _parser(mode).print_help()
        parts.append(f"\n### --mode={mode}\n\n```text\n{text.getvalue()}```\n")
    _write("reference/commands.md", "".join(parts))


def write_knobs() -> None:
    """A table of the knobs that each template declares."""
    lines = ["# Knobs", "", "A class inherits the knobs of its template; `--set=KNOB=VALUE` changes one for a run.", ""]
    for module in pkgutil.iter_modules(templates.__path__, "registry.templates."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if cls.__module__ == module.name and issubclass(cls, Experiment):
                lines += _template(cls)
    _write("reference/knobs.md", "\n".join(lines) + "\n")


def _template(cls: type[Experiment]) -> list[str]:
    types = inspect.get_annotations(cls, eval_str=True)
    names = [name for name in types if name.isupper() and not show(getattr(cls, name)).startswith("Specs(")]
    if not names:
        return []
    texts = meanings(cls)
    rows = [
        " | ".join(
            cell.replace("|", "\\|")
            for cell in (
                f"`{name}`",
                f"`{show_type(types[name])}`",
                f"`{show(getattr(cls, name))}`",
                texts.get(name, ""),
            )
        )
        for name in names
    ]
    heading = [
        f"## {cls.__name__}",
        "",
        f"{doc_line(cls)} (`{cls.__module__}`)",
        "",
        "| knob | type | default | meaning |",
    ]
    return [*heading, "| --- | --- | --- | --- |", *(f"| {row} |" for row in rows), ""]


def write_modules() -> None:
    """The docstrings of modules that users extend."""
    _write("reference/modules.md", "# Python modules\n\n" + "\n\n".join(f"::: {name}" for name in MODULES) + "\n")


def _write(path: str, text: str) -> None:
    with mkdocs_gen_files.open(path, "w") as page:
        page.write(text)


write_commands()
write_knobs()
write_modules()
