"""The knobs that all parts of a model share: width, norms, biases, initial values and their scaling by width."""

import sys
from typing import Any, Literal

import fiddle as fdl
from fiddle import history

from layers.errors import UsageError
from layers.norm import LayerNorm, RMSNorm
from layers.specs import P, show_spec
from layers.weights.initializers import Constant, FanIn, FanInUniform, InverseFanIn, Normal, Uniform
from registry.templates.training import LanguageTraining
from registry.values import PerLayer, Positive, PositiveFloat
from tasks.parametrization import Parametrization

Position = Literal["rotary", "learned", "sinusoidal", "scaled_sinusoidal", "alibi", "relative", "distance", "none"]
ADDED = ("learned", "sinusoidal", "scaled_sinusoidal")  # positions that are added to the embedding
NormScale = Literal["none", "vector", "one_plus_vector", "scalar"]
Bias = Literal["qkv", "attention_out", "ffn", "norm", "head"]


class ModelKnobs(LanguageTraining):
    """Knobs with one meaning in every part of a model. A knob of type PerLayer may be a pattern over layers."""

    # Model
    NUM_LAYERS: Positive = 4  # number of layers: of mixers with their feed-forward layers
    MODEL_DIM: Positive = 128  # width of the residual stream
    POSITIONS: PerLayer[Position] = "rotary"  # position encoding
    NORM: Literal["rms", "layer"] = "rms"  # kind of normalization
    NORM_SCALE: NormScale = "vector"  # learned gains of norms: none, one or per channel, there also as 1 + a weight
    NORM_EPSILON: float | None = None  # added to the variance; None is 1e-6 for rms and 1e-5 for layer
    BIASES: tuple[Bias, ...] = ()  # places of biases: qkv, attention_out, ffn, norm, head
    DROPOUT: float = 0.0  # dropout rate on attention probabilities and residual branches
    WAVELENGTH: PositiveFloat = 100_000.0  # longest wavelength of scaled_sinusoidal and distance, over 2 pi

    # Optimization
    PARAMETRIZATION: Literal["standard", "mup", "abs_mup"] = "standard"  # scaling by width: see tasks.parametrization
    BASE_WIDTH: Positive | None = None  # the width at which learning rates are tuned, under muP
    INIT_STDDEV: float | None = None  # standard deviation of matrices; None is fan_in^-1/2
    BRANCH_INIT: Literal["depth_scaled", "fan_in", "zero"] = "depth_scaled"  # output matrices: (2 NUM_LAYERS)^-1/2 less
    UNEMBEDDING_INIT: Literal["fan_in", "inverse_fan_in", "zero"] | None = None  # of an untied head; None: by muP

    # Computation
    DTYPE: Literal["float32", "bfloat16"] = "float32"  # of activations and matrix products

    microbatches = 1  # into which a pipeline divides a batch, or each part of it that is accumulated

    def refuse(self, knob: str, other: str, advice: str) -> None:
        """Raises a UsageError: the values of two knobs do not go together."""
        text = lambda value: show_spec(value) if isinstance(value, P) else value
        values = f"{knob} = {text(getattr(self, knob))} does not work with {other} = {text(getattr(self, other))}"
        raise UsageError(f"{values}. {advice}")

    @property
    def parametrization(self) -> Parametrization:
        """The parametrization by width."""
        if self.PARAMETRIZATION == "standard":
            return Parametrization(width=self.MODEL_DIM)
        return Parametrization(rule=self.PARAMETRIZATION, width=self.MODEL_DIM, base_width=self.BASE_WIDTH)

    def initializer(self, scale: float = 1.0, *, uniform: bool = False) -> fdl.Config:
        """Returns the initializer of a matrix: normal or uniform, times `scale`."""
        if self.INIT_STDDEV is None:
            return fdl.Config(FanInUniform if uniform else FanIn, scale=scale)
        stddev = self.INIT_STDDEV * self.parametrization.multiple**-0.5 * scale
        return fdl.Config(Uniform if uniform else Normal, stddev=stddev)

    def branch_initializer(self, *, uniform: bool = False) -> fdl.Config:
        """Returns the initializer of the output matrix of a residual branch (Radford et al. 2019, section 2.3)."""
        if self.BRANCH_INIT == "zero":
            return fdl.Config(Constant)
        scale = (2 * self.NUM_LAYERS) ** -0.5 if self.BRANCH_INIT == "depth_scaled" else 1.0
        return self.initializer(scale, uniform=uniform)

    def unembedding_initializer(self) -> fdl.Config:
        """Returns the initializer of an untied head."""
        standard = self.PARAMETRIZATION == "standard"
        kind = self.UNEMBEDDING_INIT or ("fan_in" if standard else "inverse_fan_in")
        if self.OPTIMIZER == "adafactor" and kind == "fan_in" and not standard:
            raise UsageError(
                "UNEMBEDDING_INIT = fan_in does not work with OPTIMIZER = adafactor under muP, because its updates are "
                "proportional to the weight. Set UNEMBEDDING_INIT to inverse_fan_in or zero."
            )
        if kind == "zero":
            return fdl.Config(Constant)
        if kind == "fan_in":
            return self.initializer()
        if self.INIT_STDDEV is None:
            return fdl.Config(InverseFanIn)
        return fdl.Config(Normal, stddev=self.INIT_STDDEV / self.parametrization.multiple)

    @property
    def fixed_stddev(self) -> float:
        """Standard deviation of tied embeddings and learned positions; constant over widths under muP."""
        return self.INIT_STDDEV or (self.MODEL_DIM / self.parametrization.multiple) ** -0.5

    def layer(self, cls: Any, **fields: Any) -> fdl.Config:
        """Returns the config of a module, with the specs that it lists."""
        if "param_dtype" in cls.__dataclass_fields__ and self.PARAM_DTYPE != "float32":
            fields["param_dtype"] = self.PARAM_DTYPE
        layout = self.layout
        if "activations" in cls.__dataclass_fields__:
            fields["activations"] = layout.activations.of(cls)
        if "specs" in cls.__dataclass_fields__:
            fields["specs"] = layout.weights.of(cls)
        called = sys._getframe(1)  # the line that `registry explain` names
        location = history.Location(called.f_code.co_filename, called.f_lineno, called.f_code.co_name)
        with history.custom_location(lambda: location):
            return fdl.Config(cls, **fields)

    def norm(self) -> fdl.Config:
        """Returns the config of one normalization."""
        weights: dict[str, Any] = {"use_scale": self.NORM_SCALE != "none", "use_bias": "norm" in self.BIASES}
        if self.NORM == "rms":
            kinds = {"scalar": {"scalar_scale": True}, "one_plus_vector": {"one_plus_scale": True}}
            return self.layer(RMSNorm, **weights, **kinds.get(self.NORM_SCALE, {}), **self.epsilon)
        if self.NORM_SCALE in ("scalar", "one_plus_vector"):
            self.refuse("NORM_SCALE", "NORM", "Layer norms have gains per channel: set NORM_SCALE to vector or none.")
        return self.layer(LayerNorm, **weights, **self.epsilon)

    @property
    def epsilon(self) -> dict[str, float]:
        """The epsilon argument of normalizations; empty for their default."""
        return {} if self.NORM_EPSILON is None else {"epsilon": self.NORM_EPSILON}

    @property
    def rms_epsilon(self) -> dict[str, float]:
        """The epsilon argument of RMS norms inside a mixer: that of the other norms if they are RMS norms too."""
        return self.epsilon if self.NORM == "rms" else {}
