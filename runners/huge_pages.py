"""Large pages for what a process computes with on its CPU.

XLA asks for the temporary memory of a step anew each time, and the kernel hands it out in pages of 4 KiB, cleared one
by one: a fifth to a third of a step on a CPU. With pages of 2 MiB, where the kernel gives them to those who ask
("madvise"), glibc's allocator asks if told so before the process starts (glibc manual, memory allocation tunables).
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
MARK = "large_pages"  # an option of the interpreter that says it is done: the variable may not survive
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def tunables(given: str, kernel: str, library: str) -> str | None:
    """What GLIBC_TUNABLES must say; None where nothing is to be changed.

    Args:
      given: what it says.
      kernel: the kernel's setting, the one in force in brackets.
      library: name and version of the C library, "glibc 2.36".
    """
    name, _, version = library.partition(" ")
    able = name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)
    if not able or "[madvise]" not in kernel or TUNABLE in given:
        return None
    return ":".join(filter(None, (given, f"{TUNABLE}=1")))


def _module(arguments: Sequence[str]) -> str | None:
    """The module that the interpreter was asked for; None where it was asked for a script, which may run a module."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-m":
            return next(rest, None)
        if not argument.startswith("-"):
            return None
        if argument in ("-W", "-X"):
            next(rest, None)
    return None


def _is_watched() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return bool(sys.gettrace() or sys.getprofile() or any(tools))


def use_large_pages(module: str) -> None:
    """Starts this process anew, as the same process, with an allocator that asks for large pages, where that helps.

    Nothing is done unless the command was `python -m MODULE`, and where a debugger or profiler looks on: what ran
    before would run twice. GLIBC_TUNABLES=glibc.malloc.hugetlb=0 leaves things as they are.
    """
    arguments = sys.orig_argv[1:]
    if _module(arguments) != module or MARK in sys._xoptions or _is_watched() or not sys.executable:
        return
    given = os.environ.get("GLIBC_TUNABLES")
    # Where anything fails, pages stay small.
    with contextlib.suppress(OSError, ValueError):
        wanted = tunables(given or "", KERNEL.read_text(), os.confstr("CS_GNU_LIBC_VERSION") or "")
        if wanted is None:
            return
        os.environ["GLIBC_TUNABLES"] = wanted
        try:
            os.execv(sys.executable, [sys.executable, "-X", MARK, *arguments])
        finally:  # it did not work
            os.environ.pop("GLIBC_TUNABLES")
            os.environ.update({} if given is None else {"GLIBC_TUNABLES": given})
