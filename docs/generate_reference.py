"""Writes the reference pages of the site: command lines, knobs of each template, Python modules (`make docs`)."""

import argparse
import contextlib
import importlib
import inspect
import io
import os
import pkgutil
from collections.abc import Callable

import mkdocs_gen_files

import launch.command_line
import registry.tool.command_line
import runners.convert
import vortaro.command_line
from layers.specs import Specs
from registry import templates
from registry.experiment import Experiment, doc_line
from registry.records.knob_docs import meanings
from registry.values import show, show_type
from runners.main import mode_module, mode_parser
from runners.modes import MODES
from runners.options import add_options, fields

os.environ["COLUMNS"] = "100"  # the width of argparse's help

MODULES = {  # sections of the page of modules
    "The Python API": ("vortaro.api", "vortaro.view", "vortaro.run", "vortaro.tables"),
    "To define an experiment": ("registry.experiment", "layers.specs"),
    "To write a layer": ("layers.weights.weight", "layers.weights.initializers", "tasks.weight_table"),
    "To write a task, an input or a vocabulary": (
        "tasks.task",
        "tasks.inputs.indexed",
        "tasks.inputs.sources.documents",
        "tasks.vocabularies.vocabulary",
    ),
}


def write_commands() -> None:
    """The help of each command line; the flags that all modes have are printed once."""
    common, _, epilog = _help(mode_parser("inspect_data")).partition("--mode=inspect_data:\n")
    epilog = epilog.partition("\n\n")[2]
    parts = [
        "# Command lines",
        "This page lists the commands and their flags, as `--help` prints them. The command `vortaro` includes "
        "all others: `vortaro show` is `python -m registry show`, `vortaro train` is "
        "`python -m runners.main --mode=train`.",
        "## vortaro",
        _block(vortaro.command_line.usage()),
        "## python -m registry",
        "[The registry tool](registry.md) describes each verb.",
        _block(_printed(lambda: registry.tool.command_line.main(["--help"]))),
        "## python -m runners.main",
        "[Train, resume, sample](../howto/running.md) describes how to use these flags. All modes have the flags "
        "below. The flags of single modes follow.",
        _block(common + epilog),
    ]
    for mode in MODES:
        module = mode_module(mode)
        parts += [f"### --mode={mode}", inspect.cleandoc(module.__doc__ or "")]
        if fields(module.Options):
            parser = argparse.ArgumentParser(add_help=False)
            add_options(parser, module.Options)
            parts.append(_block(_help(parser).partition("options:\n")[2]))
        else:
            parts.append("It has no other flags.")
    parts += [
        "## python -m runners.convert",
        "[Import and export weights](../howto/convert.md) describes the formats.",
        _block(_help(runners.convert._parser())),
        "## python -m launch",
        "[Launch on many machines](../howto/launch.md) describes the targets.",
        _block(launch.command_line.USAGE),
    ]
    for target, cls in launch.command_line.TARGETS.items():
        parser = argparse.ArgumentParser(add_help=False)
        add_options(parser, cls)
        parts += [
            f"### {target}",
            inspect.cleandoc(cls.__doc__ or ""),
            _block(_help(parser).partition("options:\n")[2]),
        ]
    _write("reference/commands.md", "\n\n".join(parts) + "\n")


def _help(parser: argparse.ArgumentParser) -> str:
    return parser.format_help()


def _printed(command: Callable[[], object]) -> str:
    """Returns what a command prints before it exits."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command()
    return text.getvalue()


def _block(text: str) -> str:
    return f"```text\n{text.strip(chr(10))}\n```"


def write_knobs() -> None:
    """A table of the knobs that each template declares, base classes first."""
    lines = [
        "# Knobs",
        "",
        "This page lists the knobs of the base class and of every template: type, default and meaning. An experiment "
        "has the knobs of the template that it extends and of the classes that this one extends. Set a knob in a class "
        "(`MODEL_DIM = 256`), or for one run on the command line (`--set=MODEL_DIM=256`). `python -m registry show "
        "NAME --all` shows the values of an experiment.",
        "",
    ]
    classes = {Experiment} | {
        cls
        for module in pkgutil.iter_modules(templates.__path__, "registry.templates.")
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        if cls.__module__ == module.name and issubclass(cls, Experiment)
    }
    for cls in sorted(classes, key=lambda cls: (len(cls.__mro__), cls.__name__)):
        lines += _template(cls)
    _write("reference/knobs.md", "\n".join(lines) + "\n")


def _template(cls: type[Experiment]) -> list[str]:
    types = inspect.get_annotations(cls, eval_str=True)
    names = [name for name in types if name.isupper() and not _is_table(getattr(cls, name))]
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
        f"{doc_line(cls)} (`{cls.__module__}`{_base(cls)})",
        "",
        "| knob | type | default | meaning |",
    ]
    return [*heading, "| --- | --- | --- | --- |", *(f"| {row} |" for row in rows), ""]


def _is_table(value: object) -> bool:
    """Returns whether the value is a table of specs with rows, which are too long for a cell."""
    return isinstance(value, Specs) and bool(value)


def _base(cls: type[Experiment]) -> str:
    """Returns the class that a template extends, as a link to its knobs; empty for the base of all."""
    bases = [base.__name__ for base in cls.__mro__[1:] if issubclass(base, Experiment)]
    return f"; extends [{bases[0]}](#{bases[0].lower()})" if bases else ""


def write_modules() -> None:
    """The docstrings of modules that users call or extend."""
    parts = [
        "# Python modules",
        "This page lists the functions and classes that your code calls or extends, with their docstrings. "
        "[Python API](python.md) has examples.",
    ]
    for title, names in MODULES.items():
        parts += [f"## {title}", *(f"::: {name}" for name in names)]
    _write("reference/modules.md", "\n\n".join(parts) + "\n")


def _write(path: str, text: str) -> None:
    with mkdocs_gen_files.open(path, "w") as page:
        page.write(text)


write_commands()
write_knobs()
write_modules()
