"""Progress display of training: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping

from rich.progress import BarColumn, Progress, TextColumn

from runners.machine.terminal import progress_console

# The displayed scalars by importance: on a narrow terminal the last ones are omitted.
SHOWN = (
    ("loss", "loss {:.4f}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("bits_per_byte", "{:.3f} bits/byte"),
    ("mfu", "MFU {:.1%}"),
    ("learning_rate", "lr {:.2e}"),
    ("accuracy", "accuracy {:.3f}"),
    ("grad_norm", "grad {:.2f}"),
)
BAR = 10  # minimum width of the bar in columns


class TrainingProgress:
    """The progress display, a context manager; call `report` for every line of metrics.

    Args:
      total: the number of updates of the run.
      start: the number of updates done before.
      now: the clock, in seconds.
    """

    def __init__(self, total: int, start: int, now: Callable[[], float] = time.perf_counter):
        self._console = progress_console()
        self._total = total
        self._now = now
        self._first: tuple[float, int] | None = None  # time and step of the first report
        self._bar = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(None), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, expand=True)
            self._task = self._bar.add_task("compiling", total=total, completed=start)

    def __enter__(self) -> "TrainingProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows the training metrics at a step: all of them on a line, or those that fit in the bar."""
        left = f"{clock((self._total - step) * self._seconds_per_step(step, scalars))} left"
        if self._bar is None:
            self.print(f"step {step:>6}/{self._total}  {left}  {summary(scalars)}")
            return
        room = self._console.width - len(f"{self._total}/{self._total} {left}") - 3 - BAR
        self._bar.update(self._task, completed=step, description=f"{left}  {summary(scalars, room)}")

    def _seconds_per_step(self, step: int, scalars: Mapping[str, float]) -> float:
        """Returns the mean seconds per step since the first report, evaluations and checkpoints included."""
        now = self._now()
        if self._first is None:
            self._first = now, step
        began, first = self._first
        return (now - began) / (step - first) if step > first else 1 / scalars["steps_per_second"]

    def print(self, line: str) -> None:
        """Prints a line."""
        self._console.print(line, markup=False)


def summary(scalars: Mapping[str, float], room: int | None = None) -> str:
    """Returns the displayed scalars in one line of at most `room` characters: the first ones that fit."""
    line = ""
    for word in (form.format(scalars[name]) for name, form in SHOWN if name in scalars):
        longer = f"{line}  {word}" if line else word
        if room is not None and len(longer) > room:
            break
        line = longer
    return line


def clock(seconds: float) -> str:
    """Returns a duration as `2:05` or `1:02:05`."""
    total = int(seconds)
    hours, minutes = divmod(total // 60, 60)
    return f"{hours}:{minutes:02}:{total % 60:02}" if hours else f"{minutes}:{total % 60:02}"


def already_finished(start: int, steps: int, knob: str) -> str:
    """Returns the message for a run whose last checkpoint, of step `start`, is at its last step `steps` or later."""
    return (
        f"Training had already finished: the last checkpoint is of step {start}, and {knob} = {steps}. "
        f"To train further, add --set={knob}={2 * start}."
    )
