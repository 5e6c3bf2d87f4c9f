"""Output of the registry tool that the documentation shows is what the tool prints."""

import itertools
import re
import shlex
import sys
from pathlib import Path

import pytest

from registry.experiment import REGISTRY
from registry.tool.command_line import main
from tests.conftest import ROOT
from tests.docs.test_docs import OPERATORS, PAGES

WIDTH = 100  # characters of a line in the documentation
DIFF_WIDTH = 120  # of the difference in the README
VERBS = ("list", "show", "weights", "diff", "explain", "check", "tree", "site")
COMMAND = re.compile(r"(?:python -m registry|python -m vortaro|vortaro) (?=[a-z])")
SHOWN = re.compile(r"^```sh\n([^`]*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"^cat > (\w+\.py) <<'(\w+)'\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
SITE = re.compile(r"(?<=experiments), \d+ files, [\d.]+ MiB, [\d.]+ s$")
OMITTED = "..."
CUT = "…"


def command_of(block: str) -> list[str]:
    """Returns the arguments of the tool if the block is one command of it that needs no run; empty otherwise."""
    lines = block.replace("\\\n", " ").strip().splitlines()
    if len(lines) != 1 or not COMMAND.match(lines[0]):
        return []
    words = shlex.split(COMMAND.sub("", lines[0], count=1), comments=True)
    arguments = list(itertools.takewhile(lambda word: word not in OPERATORS, words))
    is_of_a_run = any("/" in word for word in arguments)
    return arguments if arguments[0] in VERBS and not is_of_a_run else []


EXAMPLES = {
    f"{page.relative_to(ROOT)}: {' '.join(arguments)}": (page, arguments, shown)
    for page in PAGES
    for block, shown in SHOWN.findall(page.read_text())
    if (arguments := command_of(block))
}


def lines_of(text: str) -> list[str]:
    """Returns the lines with characters, without line numbers of source text, which change with any edit, and without
    the size of a site and its seconds."""
    lines = [SITE.sub("", line.rstrip()) for line in text.splitlines() if line.strip()]
    return [re.sub(r"─+", "─", re.sub(r"\.py:\d+\b", ".py", line)) for line in lines]  # a rule is as wide as its cells


def pattern_of(shown: list[str]) -> str:
    """Returns the pattern of the output: `...` is any number of lines, and a cell that ends with … any longer cell."""
    cells = lambda line: ".*".join(re.escape(part.rstrip()) for part in line.split(CUT))
    return "".join(r"(?:.*\n)*?" if line.strip() == OMITTED else cells(line) + r"\n" for line in shown)


def require_shown(shown: str, printed: str) -> None:
    """Fails with both texts if the tool prints something else than the page shows."""
    if not re.fullmatch(pattern_of(lines_of(shown)), "\n".join(lines_of(printed)) + "\n"):
        assert lines_of(shown) == lines_of(printed)  # pytest shows the lines that differ


@pytest.fixture
def modules_of(tmp_path, monkeypatch):
    """Writes the modules that a page creates into an empty folder, the working folder."""
    names = []

    def write(page: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        for name, _, source in MODULE.findall(page.read_text()):
            (tmp_path / name).write_text(source)
            names.append(name.removesuffix(".py"))

    yield write
    for name in names:
        sys.modules.pop(name, None)
        for key in [key for key in REGISTRY if key.startswith(f"{name}.")]:
            del REGISTRY[key]


def test_pages_with_output_are_found():
    assert {arguments[0] for _, arguments, _ in EXAMPLES.values()} >= {"list", "show", "weights", "diff", "explain"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_page_shows_what_the_tool_prints(example, modules_of, capsys, monkeypatch):
    page, arguments, shown = EXAMPLES[example]
    modules_of(page)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    main(arguments)
    require_shown(shown, capsys.readouterr().out)


def test_the_diff_in_the_readme_is_what_the_tool_prints(capsys, monkeypatch):
    text = (ROOT / "README.md").read_text()
    shown = re.search(
        r"`python -m registry (diff [^`]+)`:\n\n<!-- diff -->\n```\n(.*?)```\n<!-- end -->", text, re.DOTALL
    )
    assert shown is not None
    monkeypatch.setenv("COLUMNS", str(DIFF_WIDTH))
    assert main(shlex.split(shown[1])) == 1
    require_shown(shown[2], capsys.readouterr().out)


def test_omitted_lines_and_shortened_cells_match():
    printed = "a  one two\nb\nc\nd\n"
    require_shown("a  one…\n...\nd\n", printed)
    require_shown("...\nc\nd\n", printed)
    for wrong in ("a  two…\n...\nd\n", "a  one…\n...\nc\n", "b\n...\n"):
        with pytest.raises(AssertionError):
            require_shown(wrong, printed)
