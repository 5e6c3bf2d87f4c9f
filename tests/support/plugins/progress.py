"""Pytest plugin: one progress line with the percentage, the number of tests and the time left.

Tests count by the seconds they took in the last run, kept in .pytest_cache/seconds.json; a test without a record counts
as the mean of the others. On a terminal the line is redrawn; elsewhere a line is printed every 20 seconds. Failures are
named at once.

The tests of a file run in one process, one after the other, and share its fixtures. Tests marked `first`, and the
others of their files, start before all others; files start in the order of the seconds they took, the longest first. So
no process waits for the other at the end, also where no seconds are known.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from tasks.storage.files import write_whole

SECONDS = Path(__file__).parents[3] / ".pytest_cache" / "seconds.json"
PRINT_EVERY = 20.0  # seconds between lines where output is not a terminal


class Progress:
    """Counts finished tests, weighted by their last known duration.

    Args:
      known: seconds of each test in earlier runs, by test id.
      now: the clock, in seconds.
      write: prints text.
      terminal: whether `write` goes to a terminal, where a line can be redrawn.
    """

    def __init__(self, known: dict[str, float], now=time.monotonic, write=None, *, terminal: bool = False):
        self.known, self._now, self._terminal = known, now, terminal
        self._write = write or (lambda text: print(text, end="", flush=True))
        self.seconds: dict[str, float] = {}  # of this run
        self._left: set[str] = set()
        self._total = 0
        self._failed = 0
        self._began = self._printed = now()

    def collected(self, ids: list[str]) -> None:
        """Takes the ids of all tests of this run; every worker process collects the same ones."""
        if not self._total:
            self._left, self._total = set(ids), len(ids)
            self._mean = statistics.fmean([self.known[name] for name in ids if name in self.known] or [1.0])
            self._began = self._now()

    def ran(self, name: str, seconds: float) -> None:
        """Adds the duration of one phase (set-up, call or tear-down) of a test."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def failed(self, name: str) -> None:
        """Names a failed test at once."""
        self._failed += 1
        self._write(f"\r\033[KFAILED {name}\n" if self._terminal else f"FAILED {name}\n")

    def finished(self, name: str) -> None:
        """Counts one test as done and shows the line where it is due."""
        self._left.discard(name)
        if self._terminal:
            self._write(f"\r\033[K{self.line()}" + ("" if self._left else "\n"))
        elif not self._left or self._now() - self._printed >= PRINT_EVERY:
            self._printed = self._now()
            self._write(f"{self.line()}\n")

    def _weight(self, names) -> float:
        return sum(self.known.get(name, self._mean) for name in names)

    def line(self) -> str:
        """The percentage of expected time that is done, finished tests, failures, and the time left."""
        left = self._weight(self._left)
        done = self._weight(set(self.seconds) - self._left)
        elapsed = self._now() - self._began
        share = done / (done + left) if done + left else 1.0
        rest = elapsed * left / done if done else 0.0
        failures = f", {self._failed} failed" if self._failed else ""
        count = f"{self._total - len(self._left)}/{self._total} tests{failures}"
        return f"{share:4.0%}  {count}  {_clock(elapsed)} elapsed, about {_clock(rest)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Plugin:
    """Connects Progress to pytest, in the process that reports."""

    def __init__(self):
        self.progress = Progress(known_seconds(), write=self._write, terminal=sys.stdout.isatty())
        self._reporter = None

    def _write(self, text: str) -> None:
        self._reporter.write(text, flush=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session):
        self._reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        return Scheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput["seconds"] = self.progress.known  # all processes order the tests alike

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.progress.collected(list(ids))

    def pytest_collection_finish(self, session):
        self.progress.collected([item.nodeid for item in session.items])

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report):
        return ("passed", "", "") if report.passed and report.when == "call" else None

    def pytest_runtest_logreport(self, report):
        self.progress.ran(report.nodeid, report.duration)
        if report.failed:
            self.progress.failed(report.nodeid)
        if report.when == "teardown":
            self.progress.finished(report.nodeid)

    def pytest_sessionfinish(self):
        SECONDS.parent.mkdir(exist_ok=True)
        seconds = {name: round(value, 2) for name, value in self.progress.seconds.items()}
        write_whole(SECONDS, json.dumps(self.progress.known | seconds))


def scope_of(name: str) -> str:
    """The tests that share a process, by the id of one of them: its file, or a documentation page of its own."""
    return name if "::test_commands_run_in_order[" in name else name.partition("::")[0]


class Scheduling(LoadScopeScheduling):
    """Deals out scopes to processes in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_collection_modifyitems(config, items):
    """Sorts scopes: marked ones, then by the seconds they took, the longest first; without a record, by their tests."""
    known = config.workerinput["seconds"] if hasattr(config, "workerinput") else known_seconds()
    total: dict[str, float] = {}
    first = {scope_of(item.nodeid) for item in items if item.get_closest_marker("first")}
    mean = statistics.fmean(known.values()) if known else 1.0
    for item in items:
        scope = scope_of(item.nodeid)
        total[scope] = total.get(scope, 0.0) + known.get(item.nodeid, mean)
    items.sort(key=lambda item: (scope_of(item.nodeid) not in first, -total[scope_of(item.nodeid)]))


def known_seconds() -> dict[str, float]:
    """Seconds of each test in earlier runs, by test id."""
    try:
        return json.loads(SECONDS.read_text())
    except (OSError, ValueError):  # no earlier run, or one that was killed as it wrote
        return {}


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    if not is_worker and not config.option.collectonly:
        config.pluginmanager.register(Plugin(), "vortaro-progress")
