import os
import subprocess
import sys
from typing import Any

import pytest

from runners.machine.huge_pages import KERNEL, _module, tunables

GLIBC, ASKED = "glibc 2.36", "always [madvise] never\n"


@pytest.mark.parametrize(
    ("given", "kernel", "library", "wanted"),
    [
        ("", ASKED, GLIBC, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", ASKED, GLIBC, "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", ASKED, GLIBC, None),
        ("", "[always] madvise never\n", GLIBC, None),
        ("", "always madvise [never]\n", GLIBC, None),
        ("", ASKED, "glibc 2.31", None),
        ("", ASKED, "", None),
    ],
)
def test_settings_of_the_allocator(given, kernel, library, wanted):
    assert tunables(given, kernel, library) == wanted


REPORT = """
import os, sys
print("begun", os.getpid())
from runners.machine import huge_pages
{change}
huge_pages.use_huge_pages("{module}")
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], flush=True)
"""


def run(tmp_path, module="report", change="", given=""):
    """Number of starts of the module, number of processes, and its last output."""
    (tmp_path / "report.py").write_text(REPORT.format(module=module, change=change))
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = {**os.environ, "GLIBC_TUNABLES": given, "PYTHONPATH": path}
    command = [sys.executable, "-u", "-m", "report", "--name=a b", ""]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    *begun, message = ended.stdout.splitlines()
    return len(begun), len(set(begun)), message


asks = pytest.mark.skipif(
    not KERNEL.exists() or not tunables("", KERNEL.read_text(), os.confstr("CS_GNU_LIBC_VERSION") or ""),
    reason="this kernel or C library has no large pages to ask for",
)


@asks
def test_a_process_restarts_once_with_its_arguments(tmp_path):
    assert run(tmp_path) == (2, 1, "glibc.malloc.hugetlb=1 ['--name=a b', '']")
    assert run(tmp_path, given="glibc.malloc.hugetlb=0") == (1, 1, "glibc.malloc.hugetlb=0 ['--name=a b', '']")


@pytest.mark.parametrize(
    "change",
    [
        "import sys; sys.settrace(lambda *_: None)",
        "import sys; sys.setprofile(lambda *_: None)",
        "huge_pages.os.confstr = lambda _: 'glibc 2.36-custom'",
        "from pathlib import Path; huge_pages.KERNEL = Path('no/such/file')",
        "huge_pages.sys.executable = '/no/such/python'",
    ],
)
def test_where_it_cannot_be_nothing_changes(change, tmp_path):
    assert run(tmp_path, change=change) == (1, 1, " ['--name=a b', '']")


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["-m", "report", "--flag"], "report"),
        (["-u", "-X", "faulthandler", "-W", "ignore", "-m", "report"], "report"),
        (["-m", "coverage", "run", "-m", "report"], "coverage"),
        (["bin/memray", "run", "-o", "file", "-m", "report"], None),
        (["-c", "import report", "-m", "report"], None),
        ([], None),
    ],
)
def test_which_module_was_asked_for(arguments, module):
    assert _module(arguments) == module


def test_who_is_run_by_another_program_is_left_alone(tmp_path):
    assert run(tmp_path, module="runners.main") == (1, 1, " ['--name=a b', '']")


@asks
def test_a_variable_that_does_not_survive_causes_no_endless_loop(tmp_path):
    change = "import os; real = os.execv; os.execv = lambda *a: (os.environ.pop('GLIBC_TUNABLES'), real(*a))"
    assert run(tmp_path, change=change) == (2, 1, "None ['--name=a b', '']")


@asks
def test_the_runner_has_huge_pages():
    code = "import runners.main as m, os; print(os.environ.get('GLIBC_TUNABLES'))"
    options: Any = {"capture_output": True, "text": True, "check": True, "env": os.environ | {"GLIBC_TUNABLES": ""}}
    assert "hugetlb" not in subprocess.run([sys.executable, "-c", code], **options).stdout
    mapped = [sys.executable, "-X", "importtime", "-m", "runners.main", "--help"]
    ended = subprocess.run(mapped, **options)
    assert len([line for line in ended.stderr.splitlines() if line.endswith("| runners.machine.huge_pages")]) == 2
