"""The template of language models: every choice of a part is a knob, and families are tables of knobs."""

import dataclasses
import math
from typing import Any, ClassVar, Literal, Self

import fiddle as fdl

from layers.block import Chain, ResidualBlock
from layers.embedding import Embedding, Unembedding
from layers.errors import UsageError
from layers.head_qk import HeadQK
from layers.language_model import LanguageModel
from layers.pipeline import Pipeline, most_microbatches
from layers.positions.embeddings import LearnedPositions, ScaledSinusoidalPositions, SinusoidalPositions
from layers.specs import axes_of, show_spec
from layers.stack import Segments, Stack
from layers.weights.initializers import Constant, Normal, Orthogonal
from registry.experiment import Experiment
from registry.templates import layer_patterns
from registry.templates.feed_forward import FeedForwardKnobs
from registry.templates.model import ADDED
from registry.templates.parts import part_of
from registry.templates.phases import shortened
from registry.values import Positive, PositiveFloat

Residual = Literal["sequential", "parallel", "parallel_shared_norm", "post_norm", "sandwich_norm"]


@dataclasses.dataclass(frozen=True)
class IfOn:
    """A value that replaces the knob's, unless the knob is off (None, false or 0)."""

    value: Any


def smoke_knobs(cls: type[Experiment]) -> dict[str, Any]:
    """Returns the knobs of the small variant: those in `smoke_table` of the class and its bases."""
    table: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        table |= vars(base).get("smoke_table", {})
    is_on = lambda name: getattr(cls, name) not in (None, False, 0)
    return {
        name: value.value if isinstance(value, IfOn) else value
        for name, value in table.items()
        if not isinstance(value, IfOn) or is_on(name)
    }


class DecoderLm(FeedForwardKnobs):
    """A language model: embedding, layers of a mixer and a feed-forward layer, norm, head.

    By default it is a causal transformer on bytes of text. Parts of any family go together; an error names the two
    knobs of those that do not.
    """

    DEVICE_MESH_SHAPE = (-1, 1)

    # Model
    RESIDUAL: Residual = "sequential"  # branches in sequence or parallel; norms of their inputs, outputs or both
    EMBEDDING_NORM: bool = False  # normalize the embedding
    FINAL_NORM: bool = True  # normalize the input of the head
    TIE_EMBEDDINGS: bool = True  # use the embedding as the head
    PAD_VOCAB_TO: Positive = 1  # pad the rows of the embedding to a multiple of this
    EMBEDDING_STDDEV: float | None = None  # of tokens and learned positions; None: 1 untied, else fan_in^-1/2
    EMBEDDING_SCALE: float | Literal["sqrt"] | None = None  # factor; None: 1, or to unit scale; sqrt: MODEL_DIM^1/2
    LOGITS_SCALE: PositiveFloat | Literal["inverse_sqrt"] = 1.0  # factor on the logits; inverse_sqrt: MODEL_DIM^-1/2
    LOGITS_SOFTCAP: PositiveFloat | None = None  # logits become LOGITS_SOFTCAP * tanh(logits / LOGITS_SOFTCAP)
    HEAD_QK: Positive | None = None  # key size of a pointer head to earlier tokens of the row; None for no head
    CONTEXT_LEN: Positive | None = None  # positions that the trained model is made for; None is SEQ_LEN
    ZERO_PADDING: bool = False  # set the residual stream to zero at padding
    EMBEDDING_DROPOUT: float | None = None  # dropout rate on the embedding; None is DROPOUT
    LAYER_DROPOUT: float = 0.0  # rate of skipping a residual branch; one decision per row

    # Computation
    REMAT: str = "none"  # what the backward pass recomputes: a name in layers.remat
    UNROLL: Positive = 1  # layers per iteration of the scan over layers
    PIPELINE_REPEATS: Positive = 1  # parts of a stack on each stage of STACK: a smaller bubble, more exchanges
    PIPELINE_MICROBATCHES: Positive | None = None  # of a batch or accumulated part; None: up to four per stage

    smoke_table: ClassVar[dict[str, Any]] = {
        "NUM_LAYERS": 2,
        "MODEL_DIM": 32,
        "NUM_HEADS": 8,
        "HEAD_DIM": IfOn(4),
        "BASE_WIDTH": IfOn(16),
        "FFN_DIM": 64,
        "EXPERT_DIM": IfOn(32),
        "NUM_EXPERTS": 8,
        "NUM_GROUPS": 8,
        "RECEIVE_FACTOR": IfOn(None),  # few tokens are split unevenly over the experts
        "HEAD_QK": IfOn(8),
        "BLOCK_LEN": 4,
        "MEMORY_LEN": None,
        "NUM_CODES": 16,
        "CODEBOOK_DECAY": 0.9,
        "PIPELINE_MICROBATCHES": None,
        "SEQ_LEN": 32,
        "EVAL_ROWS": 16,
        "DATA_PATH": None,
        "WARMUP_STEPS": 2,
        "NUM_STEPS": 30,
        "LOG_EVERY": 5,
        "EVAL_EVERY": 10,
        "SAVE_EVERY": 10,
    }

    @classmethod
    def Smoke(cls) -> type[Self]:
        small = super().Smoke()
        knobs: dict[str, Any] = {"GRADIENT_ACCUMULATION": min(cls.GRADIENT_ACCUMULATION, 2)}
        knobs |= {"BATCH_SIZE": 8 * knobs["GRADIENT_ACCUMULATION"]} | smoke_knobs(cls)
        if cls.NUM_KV_HEADS is not None and "NUM_KV_HEADS" not in knobs:
            heads = knobs["NUM_HEADS"] or knobs["MODEL_DIM"] // knobs["HEAD_DIM"]
            shared = lambda number: None if number is None else max(1, heads * number // cls().num_heads)
            now: Any = cls.NUM_KV_HEADS
            knobs["NUM_KV_HEADS"] = tuple(map(shared, now)) if isinstance(now, tuple) else shared(now)
        num_layers, units = knobs.pop("NUM_LAYERS"), 2
        if (stage := cls().stage_axis) is not None:  # a pipeline of two stages
            mesh = zip(cls.MESH_AXES, cls.DEVICE_MESH_SHAPE, strict=True)
            knobs["DEVICE_MESH_SHAPE"] = tuple(2 if axis == stage else size for axis, size in mesh)
            num_layers = units = 2 * cls.PIPELINE_REPEATS
        small = small.derive(**knobs)
        small = small.derive(**layer_patterns.shortened(small, num_layers, units))
        return small.derive(PHASES=shortened(cls, small)) if cls.PHASES else small

    @classmethod
    def of_width(cls, width: int) -> type[Self]:
        """Returns the experiment with another MODEL_DIM: as many layers, heads of the same size, FFN_DIM in proportion.

        Raises:
          UsageError: a size would not be an integer.
        """
        sizes: dict[str, Any] = {"MODEL_DIM": width}
        for name in cls.grows_with_width():
            if (now := getattr(cls, name)) is None:
                continue
            scaled = [_scaled(name, each, cls.MODEL_DIM, width) for each in (now if isinstance(now, tuple) else (now,))]
            sizes[name] = tuple(scaled) if isinstance(now, tuple) else scaled[0]
        if "NUM_HEADS" in sizes:
            sizes["HEAD_DIM"] = cls().head_dim
        return cls.derive(**sizes)

    @classmethod
    def grows_with_width(cls) -> tuple[str, ...]:
        """Returns the knobs that scale with MODEL_DIM if set: hidden units, and heads, or the values of gated heads."""
        heads = ("VALUE_DIM",) if cls.MIXER_GATE else ("NUM_HEADS", "NUM_KV_HEADS", "PADDED_HEADS")
        return *heads, "FFN_DIM", "EXPERT_DIM"

    def model(self) -> fdl.Config:
        """Returns the config of the model: embedding, stack, norm, head."""
        made_for: dict[str, Any] = {} if self.CONTEXT_LEN is None else {"max_length": self.CONTEXT_LEN}
        return self.layer(
            LanguageModel,
            embedding=self.embedding(),
            positions=self.position_embedding(),
            stack=self.stack(),
            final_norm=self.norm() if self.FINAL_NORM else None,
            head=None if self.TIE_EMBEDDINGS else self.head(),
            pointer=None if self.HEAD_QK is None else self.pointer(),
            embedding_norm=self.norm() if self.EMBEDDING_NORM else None,
            mask_padding=self.ZERO_PADDING,
            dropout_rate=self.DROPOUT if self.EMBEDDING_DROPOUT is None else self.EMBEDDING_DROPOUT,
            **made_for,
        )

    def embedding(self) -> fdl.Config:
        """Returns the config of the token embedding, and of a tied head."""
        stddev, scale = self.EMBEDDING_STDDEV, self.EMBEDDING_SCALE
        if scale == "sqrt":
            scale = (self.MODEL_DIM / self.parametrization.multiple) ** 0.5
        if stddev is None and self.TIE_EMBEDDINGS:
            # A tied head needs small rows for small initial logits; the factor restores the embedding's scale.
            stddev = self.fixed_stddev
            scale = 1 / stddev if scale is None and self.INIT_STDDEV is None else scale
        stddev = 1.0 if stddev is None else stddev
        config = self.layer(
            Embedding,
            vocab_size=self.vocab_size,
            table_rows=self.padded_vocab,
            model_dim=self.MODEL_DIM,
            initializer=fdl.Config(Normal, stddev=stddev),
            scale=1.0 if scale is None else scale,
            dtype=self.DTYPE,
            **self.staged,
        )
        if self.TIE_EMBEDDINGS:
            config.use_bias = "head" in self.BIASES
            config.logits_scale = self.logits_scale / self.parametrization.multiple
            self._cap(config)
        return config

    def head(self) -> fdl.Config:
        """Returns the config of an untied head."""
        config = self.layer(
            Unembedding,
            vocab_size=self.vocab_size,
            table_columns=self.padded_vocab,
            model_dim=self.MODEL_DIM,
            initializer=self.unembedding_initializer(),
            use_bias="head" in self.BIASES,
            logits_scale=self.logits_scale,
            dtype=self.DTYPE,
        )
        self._cap(config)
        return config

    def _cap(self, head: fdl.Config) -> None:
        if self.LOGITS_SOFTCAP is not None:
            head.logits_softcap = self.LOGITS_SOFTCAP

    @property
    def logits_scale(self) -> float:
        """Factor on the logits, before that of the parametrization."""
        if self.LOGITS_SCALE == "inverse_sqrt":
            return (self.MODEL_DIM / self.parametrization.multiple) ** -0.5
        return float(self.LOGITS_SCALE)

    @property
    def padded_vocab(self) -> int | None:
        """Number of stored rows of the embedding with padding; None if there is none."""
        rows = -(-self.vocab_size // self.PAD_VOCAB_TO) * self.PAD_VOCAB_TO
        return None if rows == self.vocab_size else rows

    def pointer(self) -> fdl.Config:
        """Returns the config of the pointer head to earlier tokens."""
        return self.layer(
            HeadQK,
            model_dim=self.MODEL_DIM,
            size=self.HEAD_QK,
            query_initializer=fdl.Config(Constant),
            key_initializer=fdl.Config(Orthogonal, scale=0.1),
            dtype=self.DTYPE,
        )

    def position_embedding(self) -> fdl.Config | None:
        """Returns the config of the positions that are added to the token embedding, or None."""
        kind = self.POSITIONS
        if isinstance(kind, tuple):
            if added := [each for each in kind if each in ADDED]:
                raise UsageError(
                    f"POSITIONS = {added[0]} is added to the embedding, before all layers, and cannot be part of a "
                    f"pattern (got {kind}). Set POSITIONS={added[0]}, or choose others."
                )
            return None
        if kind == "learned":
            stddev = self.fixed_stddev if self.EMBEDDING_STDDEV is None else self.EMBEDDING_STDDEV
            init = fdl.Config(Normal, stddev=stddev)
            sizes: dict[str, Any] = {"max_length": self.SEQ_LEN, "model_dim": self.MODEL_DIM}
            return self.layer(LearnedPositions, **sizes, initializer=init, **self.staged)
        if kind == "sinusoidal":
            return self.layer(SinusoidalPositions, model_dim=self.MODEL_DIM)
        if kind == "scaled_sinusoidal":
            return self.layer(ScaledSinusoidalPositions, model_dim=self.MODEL_DIM, base=self.WAVELENGTH)
        return None

    def stack(self) -> fdl.Config:
        """Returns the config of all layers: one stack, or several if the layers do not repeat one unit."""
        cls = type(self)
        stacks = []
        kinds = layer_patterns.kinds(cls, self.NUM_LAYERS)
        for unit, repeats in layer_patterns.segments(kinds, layer_patterns.period(cls)):
            blocks = tuple(layer_patterns.of_layer(self, kind).block() for kind in unit)
            block = blocks[0] if len(blocks) == 1 else fdl.Config(Chain, blocks=blocks)
            stack = fdl.Config(Stack, block=block, num_layers=repeats, remat=self.REMAT)
            stack.unroll = max(1, self.UNROLL // len(unit))  # units per iteration
            if self.stage_axis is not None and repeats % self.pipeline_parts == 0:
                stack.pipeline = self.layer(
                    Pipeline,
                    axis=self.stage_axis,
                    repeats=self.PIPELINE_REPEATS,
                    microbatches=self.PIPELINE_MICROBATCHES,
                )
            stacks.append(stack)
        if self.stage_axis is not None:
            self._require_pipeline(stacks)
        return stacks[0] if len(stacks) == 1 else fdl.Config(Segments, stacks=tuple(stacks))

    @property
    def staged(self) -> dict[str, Any]:
        """The `placement` argument of tables outside of a pipeline; empty without one."""
        return {} if self.stage_axis is None else {"placement": self.layout.activations["tokens_bs"]}

    @property
    def pipeline_parts(self) -> int:
        """Number of parts into which a pipeline divides a stack."""
        return self.pipeline_devices[0] * self.PIPELINE_REPEATS

    @property
    def pipeline_devices(self) -> tuple[int, int]:
        """The number of stages, and of a stage's devices that split the rows of a batch."""
        mesh, rows = self.mesh_shape(), axes_of(self.layout.activations["residual_bsm"][0])
        stages = 1 if self.stage_axis is None else mesh[self.stage_axis]
        return stages, math.prod(mesh[axis] for axis in rows if axis != self.stage_axis)

    @property
    def microbatches(self) -> int:
        if self.stage_axis is None:
            return 1
        rows = self.BATCH_SIZE // self.GRADIENT_ACCUMULATION
        return max(1, most_microbatches(rows, *self.pipeline_devices, self.PIPELINE_MICROBATCHES))

    def _require_pipeline(self, stacks: list[fdl.Config]) -> None:
        """Raises a UsageError if no stack is a pipeline, or one that does not work with other knobs."""
        if self.TBPTT_LEN is not None:
            advice = "A pipeline carries no state from chunk to chunk: set TBPTT_LEN to none, or STACK to P(None)."
            self.refuse("STACK", "TBPTT_LEN", advice)
        if self.GRADIENT_DTYPE != "float32":
            advice = "Gradients of many micro-batches are added up, which needs float32: set GRADIENT_DTYPE=float32."
            self.refuse("STACK", "GRADIENT_DTYPE", advice)
        for key in ("tokens_bs", "residual_bsm"):
            spec = self.layout.activations[key]
            if self.stage_axis not in axes_of(spec[0]):
                raise UsageError(
                    f"ACTIVATIONS.{key} = {show_spec(spec)} does not split rows over '{self.stage_axis}', the axis of "
                    f"STACK. Add it as the first axis of the first dimension."
                )
        (stages, devices), count = self.pipeline_devices, self.PIPELINE_MICROBATCHES
        if count is not None and count != self.microbatches:
            rows = self.BATCH_SIZE // self.GRADIENT_ACCUMULATION
            raise UsageError(
                f"PIPELINE_MICROBATCHES must be a multiple of the {stages} stages, and divide BATCH_SIZE / "
                f"GRADIENT_ACCUMULATION = {rows} rows into parts for {devices} devices (got {count}). Change "
                f"one of them."
            )
        if all("pipeline" not in stack.__arguments__ for stack in stacks):
            sizes = " and ".join(str(stack.num_layers) for stack in stacks)
            raise UsageError(
                f"STACK = {show_spec(self.STACK)} with PIPELINE_REPEATS = {self.PIPELINE_REPEATS} divides layers into "
                f"{self.pipeline_parts} parts, which divide no stack (got {self.NUM_LAYERS} layers: a stack repeats "
                f"{sizes} times). Change NUM_LAYERS, the mesh or PIPELINE_REPEATS."
            )

    def block(self) -> fdl.Config:
        """Returns the config of one layer."""
        config = self.layer(
            ResidualBlock,
            mixer_norm=self.norm(),
            mixer=self.mixer(),
            ffn_norm=None,
            ffn=self.ffn(),
            mask_padding=self.ZERO_PADDING,
            dropout_rate=self.DROPOUT,
            layer_drop_rate=self.LAYER_DROPOUT,
        )
        residual = self.RESIDUAL
        if residual in ("post_norm", "sandwich_norm"):
            config.mixer_post_norm = self.norm()
            config.mixer_norm = None if residual == "post_norm" else config.mixer_norm
        if config.ffn is None:
            return config
        config.parallel = residual in ("parallel", "parallel_shared_norm")
        if residual not in ("parallel_shared_norm", "post_norm"):
            config.ffn_norm = self.norm()
        if residual in ("post_norm", "sandwich_norm"):
            config.ffn_post_norm = self.norm()
        return config

    def mixer(self) -> fdl.Config:
        """Returns the config of the mixer along the sequence."""
        config = part_of("MIXER", self)
        assert config is not None
        return config

    def ffn(self) -> fdl.Config | None:
        """Returns the config of the feed-forward layer, or None."""
        return part_of("FFN", self)


def _scaled(name: str, size: int | None, base: int, width: int) -> int | None:
    """Returns a size in proportion to the width; one head of keys and values stays one."""
    if size is None or (name, size) == ("NUM_KV_HEADS", 1):
        return size
    if size * width % base:
        raise UsageError(f"{name} = {size} at MODEL_DIM = {base} is not an integer when scaled to width {width}.")
    return size * width // base
