"""The training part of the template: objective, optimizer and ZeRO."""

import dataclasses
import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import fiddle as fdl

from layers.errors import UsageError
from layers.specs import axes_of, show_spec
from registry.templates.language_data import LanguageData
from registry.values import Positive, PositiveFloat
from tasks.language_model_task import LanguageModelTask
from tasks.optimizers.muon import MuonScale
from tasks.optimizers.optimizer import Clipping, MethodName, Optimizer, RoleFactors, RowMethod, used_methods
from tasks.optimizers.precision import SlotDtype
from tasks.optimizers.schedules import PhasedSchedule, Schedule, Segment
from tasks.parametrization import Parametrization
from tasks.spikes import Spikes
from tasks.zero import Zero


class LanguageTraining(LanguageData):
    """The training knobs of the template, and Task()."""

    # Optimization
    OPTIMIZER: MethodName = "adamw"  # update rule: see tasks.optimizers.optimizer
    OPTIMIZERS: Mapping[str, RowMethod] = MappingProxyType({})  # of weights by name, letters or role; none: not trained
    LEARNING_RATE: float = 1e-3  # peak learning rate
    SCHEDULE: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"  # learning rate after warm-up
    WARMUP_STEPS: int = 100  # updates over which the learning rate rises linearly
    DECAY_STEPS: int | None = None  # update at which linear and cosine schedules end; None is NUM_STEPS
    START_FACTOR: float = 0.0  # learning rate at the start of warm-up over the peak
    FIRST_STEP: int = 1  # number of the first update in warm-up; 0 gives it the rate START_FACTOR
    END_FACTOR: float = 0.1  # final learning rate over the peak
    TIMESCALE: Positive | None = None  # updates before the rate of inverse_sqrt falls; None is WARMUP_STEPS
    BETA1: float = 0.9  # decay of the first moment; momentum of sgd
    BETA2: float = 0.95  # decay of the second moment
    MUON_BETA: float = 0.95  # decay of muon's momentum
    MUON_SCALE: MuonScale | None = None  # size of muon's updates: see tasks.optimizers.muon; None: rms, spectral if muP
    ADAM_EPSILON: float = 1e-8  # added to the root of adamw's second moment
    SCALE_EPSILON: bool = False  # scale ADAM_EPSILON by width like the learning rate, under muP
    MOMENT_DTYPE: SlotDtype = "float32"  # dtype of the optimizer's first moment; int8 has a scale for each block
    SECOND_MOMENT_DTYPE: SlotDtype = "float32"  # dtype of adamw's second moment
    EMA_DECAY: float | None = None  # of an average of the weights, which is evaluated, sampled and exported; None: off
    SCHEDULE_FREE: bool = False  # averages weights in place of a falling rate, and evaluates the average
    PARAM_DTYPE: Literal["float32", "bfloat16"] = "float32"  # dtype of stored weights
    MASTER_WEIGHTS: bool = False  # keep float32 copies of narrower weights in the optimizer
    WEIGHT_DECAY: float = 0.1  # decoupled weight decay
    DECAY_SCALE: Literal["learning_rate", "base_learning_rate", "schedule", "none"] = "learning_rate"  # factor on decay
    DECAY_ROLES: tuple[str, ...] = ("embedding", "hidden", "output")  # weight roles with decay
    NO_DECAY: tuple[str, ...] = ()  # rows of WEIGHTS without decay, whatever their role
    CLIP_NORM: float | None = 1.0  # limit on the global gradient norm; None is off
    CLIP_VALUE: float | None = None  # limit on the absolute value of each gradient entry
    GRADIENT_ACCUMULATION: Positive = 1  # micro-batches per update
    GRADIENT_DTYPE: Literal["float32", "bfloat16"] = "float32"  # dtype of stored gradients
    SPIKE_WINDOW: Positive | None = None  # drop updates of much higher loss or norm than so many before; None: off
    SPIKE_DEVIATIONS: PositiveFloat = 6.0  # standard deviations above the mean of SPIKE_WINDOW updates
    LOSS_NORMALIZER: Literal["weights", "positions"] = "weights"  # the loss is a mean over targets or all positions
    Z_LOSS: float = 0.0  # weight of log(Z)^2 in the objective
    LABEL_SMOOTHING: float = 0.0  # weight of the uniform distribution in the target

    # Placement
    ZERO_STAGE: int | None = None  # splits 0 nothing, 1 optimizer slots, 2 also gradients, 3 also weights; None: off
    ZERO_AXIS: str | None = None  # the mesh axis of ZeRO; None is the first one that splits the rows of the batch

    # Computation
    LOSS_CHUNK: Positive | None = None  # positions whose logits are computed at once; None is all

    def Task(self) -> fdl.Config:
        return fdl.Config(
            LanguageModelTask,
            model=self.model(),
            optimizer=self.optimizer(),
            vocabulary=self.vocabulary(),
            batch_placement=self.layout.activations.of(LanguageModelTask),
            z_loss=self.Z_LOSS,
            label_smoothing=self.LABEL_SMOOTHING,
            loss_chunk=self.LOSS_CHUNK,
            normalizer=self.LOSS_NORMALIZER,
            gradient_accumulation=self.GRADIENT_ACCUMULATION,
            gradient_dtype=self.GRADIENT_DTYPE,
            zero=None if self.ZERO_STAGE is None else self.zero(),
            carry_length=None if self.TBPTT_LEN is None else self.SEQ_LEN,
            spikes=self.spikes(),
        )

    def spikes(self) -> fdl.Config | None:
        """Returns the config of dropped updates, or None."""
        if self.SPIKE_WINDOW is None:
            return None
        return fdl.Config(Spikes, window=self.SPIKE_WINDOW, deviations=self.SPIKE_DEVIATIONS)

    @property
    def positions_split_weights(self) -> bool:
        return self.ZERO_STAGE is None  # ZeRO splits each weight over one axis

    def zero(self) -> fdl.Config:
        """Returns the config of ZeRO.

        Raises:
          UsageError: its axis is that of the stages of a pipeline, which have different weights.
        """
        rows = axes_of(self.layout.activations["tokens_bs"][0])
        splitting = [axis for axis in (*rows, *self.MESH_AXES) if axis != self.stage_axis]
        if self.stage_axis is not None and self.stage_axis == self.ZERO_AXIS:
            raise UsageError(
                f"ZERO_AXIS = {self.ZERO_AXIS} does not work with STACK = {show_spec(self.STACK)}. Stages have "
                f"different weights: choose an axis whose devices share them."
            )
        return fdl.Config(Zero, stage=self.ZERO_STAGE, axis=self.ZERO_AXIS or splitting[0])

    def model(self) -> fdl.Config:
        """Returns the config of the model."""
        raise NotImplementedError

    @property
    def parametrization(self) -> Parametrization:
        """The parametrization by width."""
        return Parametrization()

    def optimizer(self) -> fdl.Config:
        """Returns the config of the optimizer."""
        falls = self.SCHEDULE in ("linear", "cosine")
        name = "NUM_STEPS" if self.DECAY_STEPS is None else "DECAY_STEPS"
        end = getattr(self, name)
        if falls and end <= self.WARMUP_STEPS:
            raise UsageError(
                f"{name} must be above WARMUP_STEPS = {self.WARMUP_STEPS} with SCHEDULE = {self.SCHEDULE} (got {end})."
            )
        if self.SCHEDULE_FREE and self.PARAM_DTYPE != "float32" and not self.MASTER_WEIGHTS:
            raise UsageError(
                f"SCHEDULE_FREE needs float32 weights, because it adds small differences to them (got PARAM_DTYPE = "
                f"{self.PARAM_DTYPE}, MASTER_WEIGHTS = False). Set MASTER_WEIGHTS=true."
            )
        decay_steps = end if falls else None
        used = used_methods(self.OPTIMIZER, self.OPTIMIZERS.values())
        return fdl.Config(
            Optimizer,
            method=self.OPTIMIZER,
            methods=tuple(self.OPTIMIZERS.items()),
            learning_rate=self.LEARNING_RATE,
            schedule=self.in_segments(
                kind=self.SCHEDULE,
                warmup_steps=self.WARMUP_STEPS,
                decay_steps=decay_steps,
                end_factor=self.END_FACTOR,
                first_step=self.FIRST_STEP,
                start_factor=self.START_FACTOR,
                timescale=self.TIMESCALE if self.SCHEDULE == "inverse_sqrt" else None,
            ),
            clipping=fdl.Config(Clipping, global_norm=self.CLIP_NORM, value=self.CLIP_VALUE),
            role_factors=fdl.Config(RoleFactors),
            parametrization=fdl.Config(Parametrization, **dataclasses.asdict(self.parametrization)),
            beta1=self.BETA1,
            beta2=self.BETA2,
            **(self.muon() if "muon" in used else {}),
            epsilon=self.ADAM_EPSILON,
            scale_epsilon="adamw" in used and self.parametrization.rule != "standard" and self.SCALE_EPSILON,
            moment_dtype=self.MOMENT_DTYPE,
            second_moment_dtype=self.SECOND_MOMENT_DTYPE,
            average_decay=self.EMA_DECAY,
            schedule_free=self.SCHEDULE_FREE,
            master_weights=self.PARAM_DTYPE != "float32" and self.MASTER_WEIGHTS,
            weight_decay=self.WEIGHT_DECAY,
            decay_scale=self.DECAY_SCALE,
            decay_roles=self.DECAY_ROLES,
            no_decay=self.NO_DECAY,
        )

    def in_segments(self, **fields: Any) -> fdl.Config:
        """Returns the config of a schedule with these fields, continued by the schedules that phases state."""
        starts = list(itertools.accumulate(self.steps_of_phases, initial=0))
        segments = []
        for number, phase in enumerate(self.PHASES):
            if phase.schedule is None and segments:
                raise UsageError(
                    f"PHASES[{number}] has no schedule, but PHASES[{number - 1}] has one. Set schedule='constant' to "
                    f"keep its last learning rate."
                )
            if phase.schedule is None:
                continue
            end = self.END_FACTOR if phase.end_factor is None else phase.end_factor
            ends = {} if phase.schedule == "constant" else {"end_factor": end}
            span = {"first": starts[number], "steps": starts[number + 1] - starts[number]}
            segments.append(fdl.Config(Segment, **span, kind=phase.schedule, **ends))
        if not segments:
            return fdl.Config(Schedule, **fields)
        if self.SCHEDULE_FREE:
            raise UsageError(
                f"SCHEDULE_FREE replaces a falling learning rate (got the schedule '{segments[0].kind}' in PHASES). "
                f"Remove it."
            )
        return fdl.Config(PhasedSchedule, **fields, segments=tuple(segments))

    def muon(self) -> dict[str, Any]:
        """Returns the fields of the optimizer that Muon reads."""
        scale = "rms" if self.parametrization.rule == "standard" else "spectral"
        return {"muon_beta": self.MUON_BETA, "muon_scale": self.MUON_SCALE or scale}
