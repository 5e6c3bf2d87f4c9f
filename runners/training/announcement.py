"""What a run prints: its model, devices, data and origin, compiled updates, and how it has ended."""

from collections.abc import Callable

import jax

from registry.experiment import owner
from registry.values import show
from runners.session import Session
from runners.training.origins.warm_start import Origin
from runners.training.progress import already_finished, clock
from runners.training.report import REPORT
from tasks.storage.files import Place


def announce(session: Session, start: int, workdir: Place, origin: Origin | None, line: Callable[[str], None]) -> None:
    """Prints the experiment on its devices, the knobs that --smoke has set, the data, and where training begins.

    Args:
      session: the session of the run, or of the phase in which it begins.
      start: number of updates done before.
      workdir: the run folder.
      origin: of weights taken from another run, if any.
      line: prints a line.
    """
    table = session.task.weight_table()
    mesh = " ".join(f"{axis}={size}" for axis, size in session.mesh_shape.items())
    line(f"{session.name}: {sum(row.size for row in table):,} parameters on {mesh} ({jax.devices()[0].device_kind})")
    if session.experiment.smoke:
        cls = type(session.experiment)
        small = [f"{name}={show(value)}" for name, value in cls.knobs().items() if owner(cls, name) == "Smoke()"]
        line(f"Set by --smoke: {' '.join(small)}")
    line(f"Data: {session.train.input.describe()}")
    if origin is not None:
        line(origin.sentence)
    elif start:
        line(f"Resumed at step {start} from {workdir}")


def compiled(run: Session, session: Session, step: int, shape: tuple[int, int], seconds: float, decided: str) -> str:
    """Returns the sentence on a compiled update: its rows if they change in the run, else how it is computed.

    Args:
      run: the session of the complete run.
      session: that of the phase of the update.
      step: the first update.
      shape: rows and positions of its batch.
      seconds: the time of compilation.
      decided: what has been decided for the program, `Session.describe`.
    """
    rows, length = shape
    if len(run.phases) > 1:
        phase = f"Phase {session.experiment.phase} from step {step}: {rows} rows of {length} positions"
        return f"{phase} (compiled in {seconds:.1f} s{decided})"
    if session.train.input.short_batches:
        return f"Rows of {length} positions from step {step} (compiled in {seconds:.1f} s)"
    return f"Compiled in {seconds:.1f} s{decided}"


def ended(session: Session, start: int, step: int, stopped_by: str | None, seconds: float, workdir: Place) -> str:
    """Returns the sentence on how a start of training has ended.

    Args:
      session: the session of the complete run.
      start: number of updates done before.
      step: the last update.
      stopped_by: the name of the signal that stopped it, if any.
      seconds: the time of this start.
      workdir: the run folder.
    """
    if stopped_by is not None:
        return f"{stopped_by}: saved step {step} in {workdir}. Run the same command again to resume."
    page, steps = f"Report: {workdir / REPORT}", session.train.num_steps
    if start and start >= steps:
        knob = "NUM_STEPS" if "NUM_STEPS" in session.experiment.knobs() else "train.num_steps"
        return f"{already_finished(start, steps, knob)} {page}"
    done = f"{step} steps" if not start else f"{step} steps (resumed at step {start})"
    return f"Done: {done} in {clock(seconds)}. {page}"
