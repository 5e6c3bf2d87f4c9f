"""One run: the content of its folder, read once and only when it is needed."""

import contextlib
import datetime
import functools
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from layers.errors import UsageError, first_line
from registry.records.json_values import value
from registry.records.record import EXPERIMENT, Snapshot, load, of_text
from registry.runs import metrics, state
from registry.runs.folders import NON_FINITE, find
from registry.runs.goodput import Goodput, goodput, times_of
from tasks.storage.files import Place, is_remote, reached
from tasks.storage.json_values import Count, parsed, require_type

THREADS = 16  # that read run folders on object stores


class NonFinite(TypedDict):
    """The values of non_finite.json that are shown."""

    step: Count
    cause: str


class Run:
    """A run folder.

    Attributes:
      folder: the folder.
      name: its name, as it was given.
    """

    def __init__(self, folder: Place):
        self.folder, self.name = folder, str(folder)

    @functools.cached_property
    def problem(self) -> str | None:
        """Why its record cannot be read, as a sentence; None if it can."""
        try:
            assert self.record
        except UsageError as error:
            return str(error)
        return None

    @functools.cached_property
    def record(self) -> Mapping[str, Any]:
        """The record, with current names of knobs, and names in its config as written.

        Raises:
          UsageError: it is missing or cannot be read.
        """
        file = self.folder / EXPERIMENT
        try:
            with reached(file, "read"):
                content = file.read_bytes().decode(errors="replace")
        except UsageError as error:
            if not self.folder.exists():
                raise UsageError(f"Run folder '{self.name}' does not exist. Give the --workdir of a run.") from None
            if not file.exists():
                message = f"Run folder '{self.name}' has no {EXPERIMENT}: its run was interrupted before it began."
                raise UsageError(f"{message} Remove it, or run its command again.") from None
            raise error
        try:
            return of_text(content, str(file))
        except ValueError as error:
            raise UsageError(f"'{file}' cannot be read as a run: {first_line(error)}.") from error

    @functools.cached_property
    def snapshot(self) -> Snapshot:
        """The complete record, with current names of knobs, classes and fields."""
        return load(self.folder)

    @functools.cached_property
    def content(self) -> bytes:
        """The content of its metrics.jsonl."""
        return metrics.content_of(self.folder)

    @functools.cached_property
    def summary(self) -> metrics.Summary:
        """Its last and best metrics."""
        return metrics.summary(self.content)

    @functools.cached_property
    def lines(self) -> list[metrics.Line]:
        """All its metrics in the order of their steps, with the training time of each in seconds."""
        return metrics.with_seconds(metrics.lines_of(self.content))

    @property
    def entry(self) -> str:
        """The name of its experiment, with --smoke if it is small."""
        return f"{self.record['experiment']}{' --smoke' if self.record.get('smoke') else ''}"

    @property
    def knobs(self) -> dict[str, str]:
        """The text of each knob."""
        return {name: knob["value"] for name, knob in self.record["knobs"].items()}

    @functools.cached_property
    def settings(self) -> dict[str, str]:
        """The text of each knob, and of each config field that an override sets."""
        parts = (override.partition("=") for override in self.record["overrides"])
        return self.knobs | {path.strip(): text.strip() for path, _, text in parts if "." in path}

    @property
    def code(self) -> str:
        """The digests of the code of its last start, in one text."""
        start = (self.record.get("starts") or [{}])[-1]
        return " ".join(str(of.get("digest")) for of in start.get("code", {}).values())

    @property
    def made_of(self) -> tuple[str, ...]:
        """The fingerprints of its data, and the digests of its code."""
        start = (self.record.get("starts") or [{}])[-1]
        return (*(str(of.get("fingerprint")) for of in start.get("data", {}).values()), self.code)

    @property
    def steps(self) -> int | None:
        """The step at which it ends; None if unknown."""
        text = self.record.get("config", {}).get("train.num_steps", "")
        return int(text) if text.isdecimal() else None

    @functools.cached_property
    def state(self) -> str:
        """One of `registry.runs.state.STATES`."""
        if self.problem is not None:
            return state.BROKEN
        return state.state_of(self.folder, self.record, step=lambda: self.summary.step, steps=self.steps)

    @functools.cached_property
    def seconds(self) -> float | None:
        """The time in seconds that its processes have run; None if unknown."""
        running = self.state == state.RUNNING
        return state.seconds_of(self.folder, self.record, now=time.time(), is_running=running)

    @functools.cached_property
    def goodput(self) -> Goodput:
        """The seconds since its first start, by what was done in them; zeros if they were not recorded from then on."""
        lines, starts = times_of(self.folder), self.record.get("starts") or []
        first = min((datetime.datetime.fromisoformat(start["started"]).timestamp() for start in starts), default=0.0)
        return goodput(lines) if lines and lines[0]["time"] < first + UNRECORDED else Goodput()

    @functools.cached_property
    def non_finite(self) -> str:
        """Which value was the first that was not finite, if the run has stopped because of it; else empty."""
        with contextlib.suppress(OSError, ValueError):
            found = parsed((self.folder / NON_FINITE).read_bytes())
            require_type(found, NonFinite, NON_FINITE)
            return found["cause"] if found["step"] > self.summary.step else ""
        return ""

    def __getitem__(self, name: str) -> Any:
        """Returns a figure in FIGURES, a setting, or the last scalar of validation or of tasks; None without it."""
        if name in FIGURES:
            return FIGURES[name](self)
        if name in self.settings:
            return value(self.settings[name])
        return self.summary.validation.get(name, self.summary.evals.get(name))


UNRECORDED = 60.0  # seconds between the first start and its time that are due to the start itself

FIGURES: dict[str, Any] = {
    "run": lambda run: run.name,
    "entry": lambda run: run.record["experiment"],
    "state": lambda run: run.state,
    "step": lambda run: run.summary.step,
    "steps": lambda run: run.steps,
    "tokens": lambda run: run.summary.train.get("tokens_seen"),
    "flops": lambda run: run.summary.train.get("flops"),
    "seconds": lambda run: run.seconds,
    "goodput": lambda run: run.goodput.share,
    "parameters": lambda run: run.record.get("totals", {}).get("parameters"),
    "started": lambda run: (run.record.get("starts") or [{}])[-1].get("started"),
    "train_loss": lambda run: run.summary.train.get("loss"),
    "best_loss": lambda run: run.summary.best.get("loss"),
    "best_step": lambda run: run.summary.best.get("step"),
}
"""Names of conditions, columns and orders of runs, besides knobs and the scalars of validation: name, function."""


def read(patterns: Iterable[str]) -> list[Run]:
    """Returns the runs that match patterns (`registry.runs.folders.find`); those on object stores are read in threads.

    Raises:
      UsageError: no run folder matches a pattern.
    """
    runs = [Run(folder) for folder in find(patterns)]
    remote = [run for run in runs if is_remote(run.folder)]
    if remote:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda run: (run.state, run.problem or run.seconds), remote))
    return runs
