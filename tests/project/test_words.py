"""Documentation, docstrings, comments and messages use the field's words: no word that has a plainer one."""

import ast
import io
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
TRACKED = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
FILES = [name for name in TRACKED if not name.startswith("tests/")]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of prose with their numbers: all of a page but its code; strings and comments of a module."""
    source = path.read_text()
    lines = source.splitlines()
    if path.suffix == ".md":
        is_code = False
        for number, line in enumerate(lines, 1):
            is_code ^= line.startswith("```")
            if not is_code:
                yield number, line
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.splitlines(), node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def banned_words(path: Path) -> set[tuple[int, str]]:
    """Line numbers and banned words of a file."""
    return {(number, match[1].lower()) for number, line in texts(path) for match in BANNED.finditer(line)}


def test_words_are_plain():
    found = [(file, *place) for file in FILES for place in sorted(banned_words(ROOT / file))]
    found = [f"{file}:{number}: {word}" for file, number, word in found if (file, word) not in ALLOWED]
    assert not found, "\n".join(found)


def test_exceptions_are_few_and_used():
    assert len(ALLOWED) <= 40
    for file, word in ALLOWED:
        assert word in {found for _, found in banned_words(ROOT / file)}, (file, word)


def test_a_banned_word_is_found(tmp_path):
    (tmp_path / "a.py").write_text('"""What goes on."""\n\nx = 1  # behind\nhear = f"is no {x}"\n')
    assert banned_words(tmp_path / "a.py") == {(1, "goes on"), (3, "behind"), (4, "is no")}
    (tmp_path / "b.md").write_text("It says.\n```sh\nsay\n```\n")
    assert banned_words(tmp_path / "b.md") == {(1, "says")}
