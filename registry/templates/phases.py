"""Phases of a run: an experiment for each, which continues the data of those before, and the complete input."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import fiddle as fdl

from layers.errors import UsageError, errors_of
from registry.experiment import Experiment, cls_key, knobs_set_by
from registry.phase import Phase, phase_steps
from registry.templates.data_sources import DataSources
from tasks.inputs.mixture import MixtureInput, rows_of_each
from tasks.inputs.phased import PhasedInput
from tasks.inputs.rows import TokensInput
from tasks.inputs.seqio.rows import SeqioInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.tbptt_chunks import TbpttInput

# Knobs of the first phase that later ones do not have, because its first updates have short rows.
ONLY_FIRST = {"STAGED_STEPS": None, "LENGTH_STAGES": (), "LENGTH_START": None}


class Phases(DataSources):
    """The experiments of the phases of a run, and its complete input."""

    if TYPE_CHECKING:  # knobs that LanguageData declares
        PHASES: tuple[Phase, ...]
        NUM_STEPS: int

    of_run: ClassVar[type[Self] | None] = None  # the experiment of the complete run, of which this is a phase

    def phase_input(self) -> fdl.Config:
        """Returns the training input of this phase, from its first row on."""
        raise NotImplementedError

    @property
    def phases(self) -> tuple[Self, ...]:
        """The experiments of all phases, in order; the first is that of the run. Itself alone without PHASES.

        Raises:
          UsageError: a phase states a knob that does not exist or fit, or the first one states knobs.
        """
        run = self.of_run or type(self)
        if run.PHASES and run.PHASES[0].knobs:
            name, value = run.PHASES[0].knobs[0]
            raise UsageError(
                f"PHASES[0] sets {name}, but the first phase has the knobs of {cls_key(run)}. Set {name} = {value!r} "
                f"there, and its later values in the other phases."
            )
        return tuple(self if number == self.phase else _in_phase(run, number) for number in range(len(run.PHASES) or 1))

    @property
    def steps_of_phases(self) -> tuple[int, ...]:
        """Number of updates of each phase."""
        return phase_steps(self.PHASES, self.NUM_STEPS) if self.PHASES else (self.NUM_STEPS,)

    def run_input(self) -> fdl.Config:
        """Returns the training input of the complete run."""
        if not self.PHASES:
            return self.phase_input()
        steps, phases = self.steps_of_phases, self.phases
        inputs = [phase.phase_input() for phase in phases]
        for number in range(1, len(inputs)):
            continued(inputs[number], zip(inputs[:number], steps, strict=False), number)
        return fdl.Config(PhasedInput, phases=tuple(inputs), steps=steps, phase=self.phase)


def _in_phase(run: type[Any], number: int) -> Any:
    if number == 0:
        return run()
    where = f"PHASES[{number}]"
    with errors_of(where), knobs_set_by(where):
        return run.derive(phase=number, of_run=run, **ONLY_FIRST | dict(run.PHASES[number].knobs))()


def continued(source: fdl.Config, earlier: Any, number: int) -> None:
    """Makes the input of a phase begin after the rows that earlier phases have read of the same data.

    A phase reads the rows of a token source from row ceil(p / L) on, with rows of L positions and p the positions that
    earlier phases have read of it: the sum of rows times positions per row. Of a mixture, each source continues.

    Args:
      source: the config of the input; changed.
      earlier: pairs (config, number of updates) of the phases before.
      number: the number of the phase.
    """
    read = [found for config, steps in earlier for found in _rows_read(config, steps)]
    for part in _parts(source):
        made = fdl.get_callable(part)
        if made is SeqioInput:
            part.seed += number  # rows cannot be skipped: another order
            continue
        positions = sum(rows * other.seq_len for other, rows in read if _same_data(part, other))
        first = -(-positions // part.seq_len)
        if made is SyntheticPackedInput:
            part.offset = -(-first // part.batch_size)
        elif made is TokensInput:
            part.first_row = first


def _rows_read(source: fdl.Config, updates: int) -> Iterator[tuple[fdl.Config, int]]:
    """Yields each source of an input with the number of rows that `updates` batches read of it."""
    inner, pieces = source, 1
    while hasattr(inner, "source") and fdl.get_callable(inner) is not TokensInput:
        pieces *= inner.source.seq_len // inner.seq_len if fdl.get_callable(inner) is TbpttInput else 1
        inner = inner.source
    rows = -(-updates // pieces) * _parts(inner)[0].batch_size
    if fdl.get_callable(inner) is not MixtureInput:
        yield inner, rows
        return
    yield from zip(inner.sources, rows_of_each(inner.weights, inner.seed, rows), strict=True)


def _parts(source: fdl.Config) -> list[fdl.Config]:
    """Returns the configs of rows in that of an input: one, or those of a mixture."""
    while hasattr(source, "source") and fdl.get_callable(source) is not TokensInput:
        source = source.source
    return list(source.sources) if fdl.get_callable(source) is MixtureInput else [source]


def _same_data(one: fdl.Config, other: fdl.Config) -> bool:
    kind = fdl.get_callable(one)
    if kind is not fdl.get_callable(other):
        return False
    return kind is SyntheticPackedInput or (kind is TokensInput and one.source == other.source)


def shortened(cls: type[Any], small: type[Experiment]) -> tuple[Phase, ...]:
    """Returns the phases of a smoke test: two updates in all but one; sizes that the small variant reduces in
    proportion, and without other data."""
    ours = vars(Experiment).keys()
    phases = []
    for phase in cls.PHASES:
        knobs: dict[str, Any] = {}
        for name, value in phase.knobs:
            before, now = getattr(cls, name), getattr(small, name)
            if name not in ours and before == now and "DATA" not in name and name not in ("MIXTURE", "VOCABULARY"):
                knobs[name] = value
            elif isinstance(value, int) and isinstance(before, int) and isinstance(now, int) and before > 0:
                least = now if name == "BATCH_SIZE" else 1  # rows for as many devices as in the first phase
                knobs[name] = max(least, round(now * value / before))
        open_steps = phase.steps is None or (all(one.steps is not None for one in cls.PHASES) and not phases)
        fields = {"schedule": phase.schedule, "end_factor": phase.end_factor}
        phases.append(Phase(steps=None if open_steps else 2, **fields, **knobs))
    return tuple(phases)
