"""Training and test programs: the data, number of updates and intervals that Train() and Test() configure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inputs.indexed import IndexedInput


def ends_window(step: Any, log_every: int, borders: Sequence[int]) -> Any:
    """Returns whether metrics are summed up to update `step` (int or array): every so many updates, and at borders."""
    ends = step % log_every == 0
    for border in borders:
        ends |= step == border
    return ends


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart:
    """A checkpoint of another run whose weights replace the initial ones."""

    workdir: str  # that run's folder
    checkpoint: str = "last"  # last, best or a step
    optimizer: bool = False  # restore the optimizer's moments and update count too


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainProgram:
    """Training from `input` for `num_steps` updates."""

    input: IndexedInput
    num_steps: int
    log_every: int = 50  # steps between two lines of metrics
    eval_every: int | None = None  # steps between two evaluations of the validation split; None: only at the end
    save_every: int = 500  # steps between two checkpoints; one is saved at the end in any case
    keep_last: int = 2  # checkpoints kept for resuming
    keep_best: int = 1  # further checkpoints kept, those of lowest validation loss
    keep_every: int | None = None  # steps between two checkpoints that are saved and kept for good; None: none
    weight_metrics: bool = False  # log norms and update ratios of all weights, of the last update of every window
    save_minutes: float | None = None  # minutes after a checkpoint until a temporary one is saved; None: none
    warm_start: WarmStart | None = None  # None starts from initial weights
    step_timeout: float | None = 1800.0  # seconds after which a hung update ends the run; None never
    replay_every: int = 0  # updates between two that are computed twice and compared bit for bit; 0: none

    def __post_init__(self):
        for name in ("num_steps", "log_every", "save_every", "keep_last", "keep_every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 (got {value})")
        if self.save_minutes is not None and not self.save_minutes > 0:
            raise ValueError(f"save_minutes must be above 0 (got {self.save_minutes:g}). Set none for none")
        if self.replay_every < 0:
            raise ValueError(f"replay_every must be at least 0 (got {self.replay_every}). Set 0 for none")
        if self.step_timeout is not None and self.step_timeout <= 0:
            raise ValueError(f"step_timeout must be above 0 seconds (got {self.step_timeout:g}). Set none for no limit")

    def evaluates_at(self, step: int) -> bool:
        """Returns whether the validation split is evaluated after a step: every `eval_every`, and at ends of phases."""
        return step in self.input.borders or (bool(self.eval_every) and step % (self.eval_every or 1) == 0)

    def is_milestone(self, step: int) -> bool:
        """Returns whether the checkpoint of a step is kept for good: at the end of a phase, and every `keep_every`."""
        return step in self.input.borders or (self.keep_every is not None and step % self.keep_every == 0)

    def is_temporary(self, step: int) -> bool:
        """Returns whether the checkpoint of a step is there only until the next one."""
        return not (step % self.save_every == 0 or step == self.num_steps or self.is_milestone(step))

    def replays(self, step: int) -> bool:
        """Returns whether update `step` is computed twice."""
        return self.replay_every > 0 and step % self.replay_every == 0

    def ends_window(self, step: int) -> bool:
        """Returns whether metrics are summed up to update `step`, and from zero after it."""
        return bool(ends_window(step, self.log_every, self.input.borders))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalTasks:
    """Tasks of lm-evaluation-harness, and how much of them is run."""

    names: tuple[str, ...]  # tasks, groups, tags or patterns ("mmlu_*")
    path: str | None = None  # folder of task files (YAML), searched before those of the harness
    limit: int | None = None  # documents of each task; None is all of them
    num_fewshot: int | None = None  # solved examples in each prompt; None is the number in the task file

    def __post_init__(self):
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1 (got {self.limit}). Set none for all documents")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"num_fewshot must be at least 0 (got {self.num_fewshot})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestProgram:
    """Evaluation on each of `inputs`, named by split."""

    inputs: Mapping[str, IndexedInput]

    @property
    def evals(self) -> EvalTasks | None:
        """The tasks that run with every evaluation of the validation split; None if there are none."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestProgramWithTasks(TestProgram):
    """Evaluation on each of `inputs`, and on tasks; a class of its own, so that other configs lack the field."""

    tasks: EvalTasks

    @property
    def evals(self) -> EvalTasks:
        return self.tasks
