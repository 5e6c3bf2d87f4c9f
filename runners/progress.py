"""What a person sees of a running training: a bar on a terminal, plain lines elsewhere."""

import os
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Use as a context; `report` at every line of metrics."""

    def __init__(self, total: int, start: int):
        # mpirun gives its processes a terminal, even where its own output is a file.
        plain = False if "OMPI_COMM_WORLD_RANK" in os.environ else None
        self._console = Console(highlight=False, soft_wrap=True, force_terminal=plain)
        self._total = total
        self._bar = None
        if self._console.is_terminal:
            columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("", total=total, completed=start)

    def __enter__(self) -> "TrainingProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows the training metrics at a step."""
        words = summary(scalars)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=words)
            return
        left = (self._total - step) / scalars["steps_per_second"]
        self.say(f"step {step:>6}/{self._total}  {words}  {clock(left)} left")

    def say(self, line: str) -> None:
        """A line of its own."""
        self._console.print(line, markup=False)


def summary(scalars: Mapping[str, float]) -> str:
    """The scalars a person follows, in one line."""
    shown = (
        ("loss", "loss {:.4f}"),
        ("bits_per_byte", "{:.3f} bits/byte"),
        ("accuracy", "accuracy {:.3f}"),
        ("learning_rate", "lr {:.2e}"),
        ("grad_norm", "grad {:.2f}"),
        ("tokens_per_second", "{:,.0f} tokens/s"),
        ("mfu", "MFU {:.1%}"),
    )
    return "  ".join(form.format(scalars[name]) for name, form in shown if name in scalars)


def clock(seconds: float) -> str:
    """`2:05` or `1:02:05`."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
