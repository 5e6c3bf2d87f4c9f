"""The template of decoder-only language models: every choice is a knob."""

from typing import Any, Literal

import fiddle as fdl

from layers.attention import Attention
from layers.block import ResidualBlock
from layers.embedding import Embedding, Unembedding
from layers.errors import UsageError
from layers.feed_forward import FeedForward
from layers.initializers import FanIn, Normal
from layers.language_model import LanguageModel
from layers.norm import LayerNorm, RMSNorm
from layers.positions import LearnedPositions, SinusoidalPositions
from layers.specs import P, Specs
from layers.stack import Stack
from registry.experiment import Experiment
from tasks.inputs.pieces import PiecesInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.text import TextInput
from tasks.language_model_task import LanguageModelTask
from tasks.optimizers import Clipping, Optimizer, RoleFactors
from tasks.programs import TestProgram, TrainProgram
from tasks.schedules import Schedule
from tasks.vocabulary import ByteVocabulary, IdVocabulary


class DecoderLm(Experiment):
    """A causal transformer on bytes of text or on synthetic packed rows.

    Weights are split over "model" by heads, hidden units and vocabulary (Shoeybi et al. 2019, Megatron-LM) and over
    "data" by the other dimension (fully sharded); the batch is split over "data".
    """

    DEVICE_MESH_SHAPE = (-1, 1)

    # Sizes
    NUM_LAYERS: int = 4
    MODEL_DIM: int = 128
    NUM_HEADS: int = 4
    NUM_KV_HEADS: int | None = None  # None is NUM_HEADS (multi-head); 1 is multi-query
    HEAD_DIM: int | None = None  # None is MODEL_DIM / NUM_HEADS
    FFN_DIM: int | None = None  # None is 4 * MODEL_DIM
    VOCAB_SIZE: int = 256  # of synthetic data; text has its 256 byte values
    SEQ_LEN: int = 128
    UPDATE_LEN: int | None = None  # positions per update: rows in pieces, the state carried along
    BATCH_SIZE: int = 16

    # Structure
    ACTIVATION: str = "gelu_tanh"
    GATED: bool = False
    NORM: Literal["rms", "layer"] = "rms"
    POSITIONS: Literal["rotary", "learned", "sinusoidal", "none"] = "rotary"
    ROTARY_BASE: float = 10_000.0
    PARALLEL_RESIDUAL: bool = False
    USE_BIAS: bool = False
    TIED: bool = True
    DROPOUT: float = 0.0  # on embedding, attention probabilities, hidden layer and residual branches
    INIT_STDDEV: float | None = None  # of matrices; None is fan_in^-1/2

    # Optimization
    OPTIMIZER: Literal["adamw", "adafactor", "lion", "sgd"] = "adamw"
    LEARNING_RATE: float = 1e-3
    SCHEDULE: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    WARMUP_STEPS: int = 100
    END_FACTOR: float = 0.1  # last learning rate over the peak
    BETA1: float = 0.9
    BETA2: float = 0.95
    WEIGHT_DECAY: float = 0.1
    CLIP_NORM: float | None = 1.0
    MICROBATCHES: int = 1
    Z_LOSS: float = 0.0
    LABEL_SMOOTHING: float = 0.0

    # Data and program
    DATA: Literal["text", "synthetic"] = "text"
    TEXT_PATH: str | None = None  # None is the source of Python's standard library
    SPLIT_FRACTIONS: tuple[float, ...] = (0.9, 0.05, 0.05)  # of a text file: train, validation, test
    EVAL_ROWS: int | None = 512  # windows of the validation split; None is all of it
    NUM_STEPS: int = 1000
    LOG_EVERY: int = 50
    EVAL_EVERY: int | None = 250
    SAVE_EVERY: int = 250

    # Computation
    DTYPE: Literal["float32", "bfloat16"] = "float32"
    REMAT: str = "none"
    UNROLL: int = 1  # layers per iteration of the scan over layers
    LOSS_CHUNK: int | None = None

    WEIGHTS: Specs = Specs(
        embedding_vm=P("model", "data"),
        query_mnd=P("data", "model", None),
        key_mkd=P("data", "model", None),
        value_mkd=P("data", "model", None),
        attention_out_ndm=P("model", None, "data"),
        ffn_in_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
        norm_scale_m=P(None),
    )
    OPTIONAL_WEIGHTS: Specs = Specs(
        ffn_gate_mf=P("data", "model"),
        unembedding_mv=P("data", "model"),
        position_tm=P(None, "data"),
        query_bias_nd=P("model", None),
        key_bias_kd=P("model", None),
        value_bias_kd=P("model", None),
        attention_out_bias_m=P(None),
        ffn_in_bias_f=P("model"),
        ffn_gate_bias_f=P("model"),
        ffn_out_bias_m=P(None),
        norm_bias_m=P(None),
    )
    ACTIVATIONS: Specs = Specs(
        tokens_bs=P("data", None),
        residual_bsm=P("data", None, None),
        query_bsnd=P("data", None, "model", None),
        key_bskd=P("data", None, "model", None),
        value_bskd=P("data", None, "model", None),
        hidden_bsf=P("data", None, "model"),
        logits_bsv=P("data", None, "model"),
    )

    @classmethod
    def Smoke(cls):
        return cls.derive(
            NUM_LAYERS=2,
            MODEL_DIM=32,
            NUM_HEADS=8,
            NUM_KV_HEADS=None if cls.NUM_KV_HEADS is None else max(1, 8 * cls.NUM_KV_HEADS // cls.NUM_HEADS),
            HEAD_DIM=None if cls.HEAD_DIM is None else 4,
            FFN_DIM=64,
            SEQ_LEN=32,
            BATCH_SIZE=8,
            EVAL_ROWS=16,
            TEXT_PATH=None,
            WARMUP_STEPS=2,
            NUM_STEPS=30,
            LOG_EVERY=5,
            EVAL_EVERY=10,
            SAVE_EVERY=10,
        )

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
            microbatches=self.MICROBATCHES,
            carry_length=None if self.UPDATE_LEN is None else self.SEQ_LEN,
        )

    def Train(self) -> fdl.Config:
        return fdl.Config(
            TrainProgram,
            input=self.pieces(self.train_input()),
            num_steps=self.NUM_STEPS,
            log_every=self.LOG_EVERY,
            eval_every=self.EVAL_EVERY,
            save_every=self.SAVE_EVERY,
        )

    def Test(self) -> fdl.Config:
        return fdl.Config(TestProgram, inputs={split: self.test_input(split) for split in ("validation", "test")})

    def pieces(self, source: fdl.Config) -> fdl.Config:
        """The input as it is, or its rows in pieces for truncated back-propagation (Williams and Peng 1990)."""
        if self.UPDATE_LEN is None:
            return source
        if self.UPDATE_LEN < 1 or self.SEQ_LEN % self.UPDATE_LEN:
            raise UsageError(f"UPDATE_LEN = {self.UPDATE_LEN} must divide SEQ_LEN = {self.SEQ_LEN}.")
        return fdl.Config(PiecesInput, source=source, batch_size=self.BATCH_SIZE, seq_len=self.UPDATE_LEN)

    def train_input(self) -> fdl.Config:
        """Endless shuffled data."""
        common = {"batch_size": self.BATCH_SIZE, "seq_len": self.SEQ_LEN, "seed": self.SEED}
        if self.DATA == "synthetic":
            return fdl.Config(SyntheticPackedInput, vocab_size=self.VOCAB_SIZE, **common)
        return fdl.Config(TextInput, path=self.TEXT_PATH, split_fractions=self.SPLIT_FRACTIONS, **common)

    def test_input(self, split: str) -> fdl.Config:
        """One pass over held-out data of the same source as Train()'s, whatever was set there."""
        config = self.Train().input
        config = config if self.UPDATE_LEN is None else config.source  # whole rows are judged
        self.hold_out(config, split)
        return config

    def hold_out(self, config: fdl.Config, split: str) -> None:
        """Turns the training input's config into that of a held-out split."""
        if self.DATA == "synthetic":
            config.batches, config.offset = 4, {"validation": 10**8, "test": 2 * 10**8}[split]
        else:
            config.split, config.shuffle = split, False
            config.max_rows = self.EVAL_ROWS if split == "validation" else None

    def vocabulary(self) -> fdl.Config:
        """Bytes for text, plain ids for synthetic data."""
        if self.DATA == "synthetic":
            return fdl.Config(IdVocabulary, size=self.VOCAB_SIZE)
        return fdl.Config(ByteVocabulary)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.VOCAB_SIZE if self.DATA == "synthetic" else ByteVocabulary().size

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        if self.HEAD_DIM is None and self.MODEL_DIM % self.NUM_HEADS:
            raise UsageError(
                f"NUM_HEADS = {self.NUM_HEADS} must divide MODEL_DIM = {self.MODEL_DIM}, or HEAD_DIM be set."
            )
        return self.HEAD_DIM or self.MODEL_DIM // self.NUM_HEADS

    def initializer(self, scale: float = 1.0) -> fdl.Config:
        """Of a matrix, times `scale`."""
        if self.INIT_STDDEV is None:
            return fdl.Config(FanIn, scale=scale)
        return fdl.Config(Normal, stddev=self.INIT_STDDEV * scale)

    def layer(self, cls: Any, **fields: Any) -> fdl.Config:
        """The config of a module, with the rows of the spec tables it lists."""
        return fdl.Config(cls, specs=self.specs.of(cls), **fields)

    def model(self) -> fdl.Config:
        """Embedding, stack, norm, head."""
        common = {"vocab_size": self.vocab_size, "model_dim": self.MODEL_DIM, "dtype": self.DTYPE}
        # A tied head wants small rows, so that the first logits are small; the factor restores the embedding's scale.
        stddev = (self.INIT_STDDEV or self.MODEL_DIM**-0.5) if self.TIED else 1.0
        scale = self.MODEL_DIM**0.5 if self.TIED and self.INIT_STDDEV is None else 1.0
        embedding = self.layer(Embedding, initializer=fdl.Config(Normal, stddev=stddev), scale=scale, **common)
        head = None if self.TIED else self.layer(Unembedding, initializer=self.initializer(), **common)
        return fdl.Config(
            LanguageModel,
            activations=self.ACTIVATIONS.of(LanguageModel),
            embedding=embedding,
            positions=self.position_embedding(),
            stack=fdl.Config(
                Stack, block=self.block(), num_layers=self.NUM_LAYERS, unroll=self.UNROLL, remat=self.REMAT
            ),
            final_norm=self.norm(),
            head=head,
            dropout_rate=self.DROPOUT,
        )

    def position_embedding(self) -> fdl.Config | None:
        """What is added to the token embedding."""
        if self.POSITIONS == "learned":
            init = fdl.Config(Normal, stddev=self.INIT_STDDEV or self.MODEL_DIM**-0.5)
            return self.layer(LearnedPositions, max_length=self.SEQ_LEN, model_dim=self.MODEL_DIM, initializer=init)
        if self.POSITIONS == "sinusoidal":
            return fdl.Config(SinusoidalPositions, model_dim=self.MODEL_DIM)
        return None

    def block(self) -> fdl.Config:
        """One layer."""
        return fdl.Config(
            ResidualBlock,
            activations=self.ACTIVATIONS.of(ResidualBlock),
            mixer_norm=self.norm(),
            mixer=self.mixer(),
            ffn_norm=self.norm(),
            ffn=self.ffn(),
            parallel=self.PARALLEL_RESIDUAL,
            dropout_rate=self.DROPOUT,
        )

    def norm(self) -> fdl.Config:
        """One normalization."""
        if self.NORM == "layer":
            return self.layer(LayerNorm, use_bias=self.USE_BIAS)
        return self.layer(RMSNorm)

    @property
    def branch_scale(self) -> float:
        """Factor on the initial weights of residual branches: (2 layers)^-1/2 (Radford et al. 2019, section 2.3)."""
        return (2 * self.NUM_LAYERS) ** -0.5

    def mixer(self) -> fdl.Config:
        """What mixes along the sequence."""
        return self.layer(
            Attention,
            activations=self.ACTIVATIONS.of(Attention),
            model_dim=self.MODEL_DIM,
            num_heads=self.NUM_HEADS,
            num_kv_heads=self.NUM_HEADS if self.NUM_KV_HEADS is None else self.NUM_KV_HEADS,
            head_dim=self.head_dim,
            initializer=self.initializer(),
            out_initializer=self.initializer(self.branch_scale),
            rotary_base=self.ROTARY_BASE if self.POSITIONS == "rotary" else None,
            use_bias=self.USE_BIAS,
            dropout_rate=self.DROPOUT,
            dtype=self.DTYPE,
        )

    def ffn(self) -> fdl.Config:
        """What works on each position."""
        return self.layer(
            FeedForward,
            activations=self.ACTIVATIONS.of(FeedForward),
            model_dim=self.MODEL_DIM,
            hidden_dim=4 * self.MODEL_DIM if self.FFN_DIM is None else self.FFN_DIM,
            initializer=self.initializer(),
            out_initializer=self.initializer(self.branch_scale),
            activation=self.ACTIVATION,
            gated=self.GATED,
            use_bias=self.USE_BIAS,
            dropout_rate=self.DROPOUT,
            dtype=self.DTYPE,
        )

    def optimizer(self) -> fdl.Config:
        """How it is learned."""
        falls = self.SCHEDULE in ("linear", "cosine")
        if falls and self.NUM_STEPS <= self.WARMUP_STEPS:
            raise UsageError(
                f"NUM_STEPS = {self.NUM_STEPS} must be above WARMUP_STEPS = {self.WARMUP_STEPS} with SCHEDULE = "
                f"{self.SCHEDULE}."
            )
        decay_steps = self.NUM_STEPS if falls else None
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
            clipping=fdl.Config(Clipping, global_norm=self.CLIP_NORM),
            role_factors=fdl.Config(RoleFactors),
            beta1=self.BETA1,
            beta2=self.BETA2,
            weight_decay=self.WEIGHT_DECAY,
        )
