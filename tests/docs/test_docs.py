"""The commands in the documentation work, and its links and paths exist; test_output.py compares output."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from layers.roots import ROOTS
from registry.index import entries
from registry.resolve import resolve
from runners.main import parse
from tests.conftest import QUICK_COMPILE, ROOT
from tests.support.processes.forking import forked_python, forking_process

PAGES = [ROOT / "README.md", ROOT / "WORKSPACE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LARGEST_FOLDER = 17  # files; more are hard to survey
OPERATORS = {"|", "||", "&&", "&", ";", ">", ">>", "<"}
WITH_COMMANDS = [page for page in PAGES if BLOCK.search(page.read_text())]


def script_of(page) -> str:
    """All commands of a page."""
    return "\n".join(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_flags_and_experiments_in_commands_are_known(page):
    """What the runner's commands name; `make test-slow` runs them."""
    lines = script_of(page).replace("\\\n", " ").splitlines()
    for words in (shlex.split(line, comments=True) for line in lines if line.startswith("python -m runners.main ")):
        options = parse(list(itertools.takewhile(lambda word: word not in OPERATORS, words[3:])))
        if options.exp and not options.imports and options.exp in names():
            resolve(options.exp, options.set, smoke=options.smoke)


def names() -> set[str]:
    return {name for key in entries() for name in (key, key.rpartition(".")[2])}


@pytest.fixture(scope="session")
def forking(tmp_path_factory):
    with forking_process(tmp_path_factory.mktemp("forking")) as address:
        yield address


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_run_in_order(page, tmp_path, forking):
    """In an empty folder, one after the other, with `python` being this one, or a fork that has imported libraries."""
    (tmp_path / "bin").mkdir()
    forked_python(tmp_path / "bin" / "python", forking)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "XLA_FLAGS": QUICK_COMPILE,
    }
    script = re.sub(r"(runners\.main .*--smoke)", r"\1 --no-tensorboard", f"set -e\n{script_of(page)}")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_folders_of_the_tree_exist(page):
    """Paths below a folder of the tree, in text and commands, and names of modules and pages in `code`."""
    text = FENCED.sub(lambda block: block[2] if block[1] in ("sh", "bash") else "", page.read_text())
    folders = "|".join((*ROOTS, "benchmarks", "docs", "testing", "tests"))
    paths = re.findall(rf"(?<![\w./~-])((?:{folders})/[\w./-]*\w)", text)
    names = re.findall(r"(?<!`)`([\w/-]+\.(?:py|md))`", text)
    of_readers = re.compile(r"my_|__init__\.py$")  # `my_models.py` is the reader's
    for path in {path for path in (*paths, *names) if Path(path).suffix in ("", ".py", ".md", ".sh")}:
        assert of_readers.match(path) or (ROOT / path).exists(), path


def test_the_map_names_every_folder_and_no_folder_is_large():
    text = (ROOT / "WORKSPACE.md").read_text()
    for root in (*ROOTS, "benchmarks"):
        for init in (ROOT / root).rglob("__init__.py"):
            folder = init.parent
            assert f"| {folder.relative_to(ROOT)}/ |" in text or folder.name == "implementations", folder
            assert len(list(folder.glob("*.py"))) <= LARGEST_FOLDER, folder


def test_entries_shown_in_the_readme_exist():
    named = set(re.findall(r"\b(?:tiny)\.[A-Z]\w+", (ROOT / "README.md").read_text()))
    assert named
    assert named <= set(entries())
