"""Documentation, docstrings, comments and messages use the field's words: no word that has a plainer one."""

import ast
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

# Each has a plain word: after, again, in vain -> without effect, alternating, inverse, in addition to, resume, become,
# print, receive, send, complete, be, not, remove.
BANNED = re.compile(
    r"\b(behind|anew|in vain|turns? about|way back|by itself|beside|go(?:es|ing)? on|went on|comes? to|came to|say|says"
    r"|said|saying|hear|hears|heard|tells?|told|telling|speaks?|spoken?|whole|stands?|stood|standing|makes? no sense"
    r"|is no|are no|leave (?:it|them) out|comes? by)\b",
    re.IGNORECASE,
)
ALLOWED: dict[tuple[str, str], str] = {}  # (file, word): why it stays
PATTERNS = ("*.py", "*.md", "*.yml", "*.ipynb", "Makefile", "pyproject.toml", "launch/templates/*")
TRACKED = subprocess.run(["git", "ls-files", *PATTERNS], cwd=ROOT, capture_output=True, text=True).stdout.split()
FILES = [name for name in TRACKED if name != "tests/project/test_words.py"]  # this file has the words themselves


def prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Lines of Markdown outside of code blocks, with their numbers."""
    is_code = False
    for number, line in enumerate(lines, 1):
        is_code ^= line.startswith("```")
        if not is_code:
            yield number, line


def code_texts(source: str) -> Iterator[tuple[int, str]]:
    """Strings, comments and names of tests in Python code, with their line numbers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.splitlines(), node.lineno)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of text with their numbers: prose of pages and notebooks, texts of modules, all lines of other files."""
    source = path.read_text()
    if path.suffix == ".py":
        yield from code_texts(source)
    elif path.suffix == ".md":
        yield from prose(source.splitlines())
    elif path.suffix == ".ipynb":
        for cell in json.loads(source)["cells"]:
            lines = "".join(cell["source"]).splitlines()
            yield from prose(lines) if cell["cell_type"] == "markdown" else enumerate(lines, 1)
    else:
        yield from enumerate(source.splitlines(), 1)


def banned_words(path: Path) -> set[tuple[int, str]]:
    """Line numbers (in a notebook, within the cell) and banned words of a file."""
    return {(number, match[1].lower()) for number, line in texts(path) for match in BANNED.finditer(line)}


def test_words_are_plain():
    places = [(file, *place) for file in FILES for place in sorted(banned_words(ROOT / file))]
    places = [f"{file}:{number}: {word}" for file, number, word in places if (file, word) not in ALLOWED]
    assert not places, "\n".join(places)


def test_exceptions_are_few_and_used():
    assert len(ALLOWED) <= 40
    for file, word in ALLOWED:
        assert word in {banned for _, banned in banned_words(ROOT / file)}, (file, word)


def test_a_banned_word_is_found(tmp_path):
    (tmp_path / "a.py").write_text('"""What goes on."""\n\nx = 1  # behind\nhear = f"is no {x}"\n')
    assert banned_words(tmp_path / "a.py") == {(1, "goes on"), (3, "behind"), (4, "is no")}
    (tmp_path / "test_a.py").write_text("def test_it_goes_on():\n    pass\n")
    assert banned_words(tmp_path / "test_a.py") == {(1, "goes on")}
    (tmp_path / "b.md").write_text("It says.\n```sh\nsay\n```\n")
    assert banned_words(tmp_path / "b.md") == {(1, "says")}
    cells = [{"cell_type": "code", "source": ["x = 1\n", "y = 2  # anew"], "outputs": [{"text": ["whole"]}]}]
    (tmp_path / "c.ipynb").write_text(json.dumps({"cells": cells}))
    assert banned_words(tmp_path / "c.ipynb") == {(2, "anew")}
    (tmp_path / "Makefile").write_text("all:\n\techo whole\n")
    assert banned_words(tmp_path / "Makefile") == {(2, "whole")}
