"""How language models learn: objective, optimizer, and what of their state is split over devices."""

import dataclasses
from typing import Literal

import fiddle as fdl

from layers.errors import UsageError
from registry.templates.language_data import LanguageData
from registry.values import Positive
from tasks.language_model_task import LanguageModelTask
from tasks.optimizers.optimizer import Clipping, Optimizer, RoleFactors
from tasks.optimizers.schedules import Schedule
from tasks.parametrization import Parametrization
from tasks.zero import Zero


class LanguageTraining(LanguageData):
    """The part of the template that Task() puts around a model."""

    OPTIMIZER: Literal["adamw", "adafactor", "lion", "sgd"] = "adamw"
    LEARNING_RATE: float = 1e-3
    SCHEDULE: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    WARMUP_STEPS: int = 100
    DECAY_STEPS: int | None = None  # update at which linear and cosine end; None is NUM_STEPS
    END_FACTOR: float = 0.1  # last learning rate over the peak
    BETA1: float = 0.9
    BETA2: float = 0.95
    ADAM_EPSILON: float = 1e-8
    MOMENT_DTYPE: Literal["float32", "bfloat16"] = "float32"  # of the optimizer's first moment
    SECOND_MOMENT_DTYPE: Literal["float32", "bfloat16"] = "float32"  # of adamw's second moment
    PARAM_DTYPE: Literal["float32", "bfloat16"] = "float32"  # of stored weights
    MASTER_WEIGHTS: bool = False  # the optimizer keeps float32 weights beside narrower ones
    WEIGHT_DECAY: float = 0.1
    DECAY_SCALE: Literal["learning_rate", "base_learning_rate", "schedule", "none"] = "learning_rate"  # times decay
    DECAY_ROLES: tuple[str, ...] = ("embedding", "hidden", "output")
    NO_DECAY: tuple[str, ...] = ()  # rows of WEIGHTS that decay leaves alone, whatever their role
    CLIP_NORM: float | None = 1.0
    CLIP_VALUE: float | None = None  # limit of each entry of the gradient
    GRADIENT_ACCUMULATION: Positive = 1
    GRADIENT_DTYPE: Literal["float32", "bfloat16"] = "float32"
    LOSS_NORMALIZER: Literal["weights", "positions"] = "weights"  # a mean over targets, or over all positions
    Z_LOSS: float = 0.0
    LABEL_SMOOTHING: float = 0.0

    # What is split over devices that work on different rows, whatever WEIGHTS says (see tasks.zero)
    ZERO_STAGE: int | None = None  # 0 nothing, 1 optimizer slots, 2 and gradients, 3 and weights; None is no ZeRO
    ZERO_AXIS: str = "data"

    LOSS_CHUNK: Positive | None = None  # positions whose logits are held at once; None is all of them

    def Task(self) -> fdl.Config:
        return fdl.Config(
            LanguageModelTask,
            model=self.model(),
            optimizer=self.optimizer(),
            vocabulary=self.vocabulary(),
            batch_placement=self.ACTIVATIONS.of(LanguageModelTask),
            z_loss=self.Z_LOSS,
            label_smoothing=self.LABEL_SMOOTHING,
            loss_chunk=self.LOSS_CHUNK,
            normalizer=self.LOSS_NORMALIZER,
            microbatches=self.GRADIENT_ACCUMULATION,
            gradient_dtype=self.GRADIENT_DTYPE,
            zero=None if self.ZERO_STAGE is None else fdl.Config(Zero, stage=self.ZERO_STAGE, axis=self.ZERO_AXIS),
            carry_length=None if self.TBPTT_LEN is None else self.SEQ_LEN,
        )

    def model(self) -> fdl.Config:
        """What is learned."""
        raise NotImplementedError

    @property
    def parametrization(self) -> Parametrization:
        """What follows from the width."""
        return Parametrization()

    def optimizer(self) -> fdl.Config:
        """How it is learned."""
        if self.MASTER_WEIGHTS and self.PARAM_DTYPE == "float32":
            raise UsageError("MASTER_WEIGHTS are float32 beside narrower weights: say PARAM_DTYPE=bfloat16.")
        falls = self.SCHEDULE in ("linear", "cosine")
        name = "NUM_STEPS" if self.DECAY_STEPS is None else "DECAY_STEPS"
        end = getattr(self, name)
        if falls and end <= self.WARMUP_STEPS:
            raise UsageError(
                f"{name} = {end} must be above WARMUP_STEPS = {self.WARMUP_STEPS} with SCHEDULE = {self.SCHEDULE}."
            )
        decay_steps = end if falls else None
        return fdl.Config(
            Optimizer,
            method=self.OPTIMIZER,
            learning_rate=self.LEARNING_RATE,
            schedule=fdl.Config(
                Schedule,
                kind=self.SCHEDULE,
                warmup_steps=self.WARMUP_STEPS,
                decay_steps=decay_steps,
                end_factor=self.END_FACTOR,
            ),
            clipping=fdl.Config(Clipping, global_norm=self.CLIP_NORM, value=self.CLIP_VALUE),
            role_factors=fdl.Config(RoleFactors),
            parametrization=fdl.Config(Parametrization, **dataclasses.asdict(self.parametrization)),
            beta1=self.BETA1,
            beta2=self.BETA2,
            epsilon=self.ADAM_EPSILON,
            moment_dtype=self.MOMENT_DTYPE,
            second_moment_dtype=self.SECOND_MOMENT_DTYPE,
            master_weights=self.MASTER_WEIGHTS,
            weight_decay=self.WEIGHT_DECAY,
            decay_scale=self.DECAY_SCALE,
            decay_roles=self.DECAY_ROLES,
            undecayed=self.NO_DECAY,
        )
