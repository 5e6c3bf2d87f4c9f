"""Meanings and groups of knobs: comments in the source of the classes that declare them."""

import ast
import functools
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from registry.experiment import Experiment

GROUPS = ("Data", "Model", "Optimization", "Placement", "Computation")  # headings, in the order of `registry show`


def meanings(cls: type[Experiment]) -> dict[str, str]:
    """Returns the meaning of each knob of an experiment, as far as declarations document them.

    A knob is declared once, by its annotation, in a template or in a user's class. Its meaning is the string below the
    declaration, or the comment in its line.
    """
    return {name: meaning for name, (meaning, _) in _declared(cls).items() if meaning}


def groups(cls: type[Experiment]) -> dict[str, str]:
    """Returns the group of each knob, in the order of GROUPS.

    It is the nearest comment above the declaration that is one of GROUPS; without one, "Model".
    """
    found = {name: group for name, (_, group) in _declared(cls).items()}
    return dict(sorted(found.items(), key=lambda item: GROUPS.index(item[1])))


def _declared(cls: type[Experiment]) -> dict[str, tuple[str, str]]:
    """Meaning and group of each knob, from the class nearest to `cls` that declares it."""
    found: dict[str, tuple[str, str]] = {}
    for base in cls.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        declared = [name for name in inspect.get_annotations(base) if name.isupper()]
        if declared and file is not None:
            texts = _in_file(Path(file)).get(base.__name__, {})
            for name in declared:
                meaning, group = texts.get(name, ("", "Model"))
                earlier = found.get(name, ("", group))
                found[name] = (earlier[0] or meaning, earlier[1])
    return found


@functools.cache
def _in_file(file: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """The declarations of a file: by class, then by knob."""
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return {}
    comments = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {node.name: dict(_in_class(node, comments)) for node in classes}


def _in_class(node: ast.ClassDef, comments: dict[int, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Pairs of knob, and its meaning and group."""
    headings = {line: text for line, text in comments.items() if text in GROUPS}
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        above = [line for line in headings if node.lineno < line < statement.lineno]
        group = headings[max(above)] if above else "Model"
        meaning = comments.get(statement.end_lineno or statement.lineno, "")
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            meaning = " ".join(str(following.value.value).split())
        yield statement.target.id, (meaning, group)
