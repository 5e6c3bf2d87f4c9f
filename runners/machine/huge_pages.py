"""Huge pages for the memory of computations on CPUs.

XLA allocates the temporary memory of each step again, and the kernel clears it in pages of 4 KiB: a fifth to a third of
the time of a step on a CPU. If the kernel gives huge pages (2 MiB) on request ("madvise"), glibc's allocator requests
them if a tunable is set before the process starts (glibc manual, memory allocation tunables).
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
MARK = "huge_pages"  # an -X option that marks the restarted process, because the variable may not survive
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def tunables(given: str, kernel: str, library: str) -> str | None:
    """Returns the value of GLIBC_TUNABLES that requests huge pages; None if it need not or cannot change.

    Args:
      given: its current value.
      kernel: the content of KERNEL, with the active setting in brackets.
      library: name and version of the C library, such as "glibc 2.36".
    """
    name, _, version = library.partition(" ")
    able = name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)
    if not able or "[madvise]" not in kernel or TUNABLE in given:
        return None
    return ":".join(filter(None, (given, f"{TUNABLE}=1")))


def _module(arguments: Sequence[str]) -> str | None:
    """Returns the module of the interpreter's -m; None for a script."""
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


def use_huge_pages(module: str) -> None:
    """Restarts this process by exec with an allocator that requests huge pages, if the system supports them.

    Does nothing unless the command was `python -m MODULE`, or under a debugger or profiler, because earlier code would
    run twice. GLIBC_TUNABLES=glibc.malloc.hugetlb=0 disables it.
    """
    arguments = sys.orig_argv[1:]
    if _module(arguments) != module or MARK in sys._xoptions or _is_watched() or not sys.executable:
        return
    given = os.environ.get("GLIBC_TUNABLES")
    # If anything fails, the process continues with small pages.
    with contextlib.suppress(OSError, ValueError):
        value = tunables(given or "", KERNEL.read_text(), os.confstr("CS_GNU_LIBC_VERSION") or "")
        if value is None:
            return
        os.environ["GLIBC_TUNABLES"] = value
        try:
            os.execv(sys.executable, [sys.executable, "-X", MARK, *arguments])
        finally:  # reached only if exec failed
            os.environ.pop("GLIBC_TUNABLES")
            os.environ.update({} if given is None else {"GLIBC_TUNABLES": given})
