"""What language models learn from and for how long: the part of the template that Train() and Test() come from."""

from typing import Any, Literal, Self

import fiddle as fdl

from layers.errors import UsageError
from registry.templates.data_sources import Data, DataSources
from registry.values import Positive
from tasks.inputs.length_curriculum import StagedInput
from tasks.inputs.seqio.rows import SeqioInput
from tasks.inputs.seqio.vocabulary import SeqioVocabulary
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.tbptt_chunks import PiecesInput
from tasks.programs import TestProgram, TrainProgram, WarmStart
from tasks.vocabularies.subwords import Gpt2Vocabulary, HuggingFaceVocabulary, SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary, IdVocabulary


class LanguageData(DataSources):
    """Documents as bytes or larger tokens, rows of a seqio task, or synthetic packed rows."""

    # Sizes of the data
    VOCAB_SIZE: Positive = 256  # of synthetic data, seqio's and of vocabularies in files; bytes are 256
    SEQ_LEN: Positive = 128
    TBPTT_LEN: Positive | None = None  # positions per update: rows in pieces, the state carried along
    BATCH_SIZE: Positive = 16

    # Short rows first
    LENGTH_STAGES: tuple[Positive, ...] = ()  # positions per row in equally long stages, before rows of SEQ_LEN
    LENGTH_START: Positive | None = None  # or stages from this length up to SEQ_LEN,
    LENGTH_MULTIPLE: Positive = 64  # each so much longer than the one before
    STAGED_STEPS: Positive | None = None  # updates that all stages take together
    STAGED_ROWS: Literal["truncate", "reshape"] = "truncate"  # shorter rows, or more of them from the same tokens

    # A vocabulary that is trained
    SENTENCEPIECE_MODEL: Literal["bpe", "unigram"] = "bpe"  # what --mode=train_vocab trains, of VOCAB_SIZE pieces
    VOCABULARY_BYTES: int = 10**9  # of training text that it reads

    # Data and program
    DATA: Literal[Data] = "text"  # where it comes from: docs/data.md
    EVAL_ROWS: int | None = 512  # windows of the validation split; None is all of it
    SEQIO_TASK: str | None = None  # name of a seqio Task or Mixture, with DATA = seqio
    SEQIO_OBJECTIVE: Literal["lm", "prefix_lm", "encoder"] = "lm"  # see tasks.inputs.seqio.rows
    SEQIO_CACHED: bool = False  # read what seqio_cache_tasks wrote
    SEQIO_CACHE_DIR: str | None = None  # where, local or gs://; None is the folders that a module added
    NUM_STEPS: Positive = 1000
    LOG_EVERY: Positive = 50
    EVAL_EVERY: int | None = 250
    SAVE_EVERY: Positive = 250
    STEP_TIMEOUT: float | None = 1800.0  # seconds after which an update that has not ended ends the run; None never
    WARM_START: str | None = None  # a run folder to take weights from, of as many layers or fewer
    WARM_START_CHECKPOINT: str = "last"  # last, best or a step
    WARM_START_OPTIMIZER: bool = False  # take the optimizer's moments and count too

    @classmethod
    def Smoke(cls) -> type[Self]:
        """Bytes, and stages for a few short rows; the rest is the template's."""
        small: dict[str, Any] = {}
        if cls.VOCABULARY != "bytes":
            small |= {"VOCABULARY": "bytes", "VOCABULARY_PATH": None}
        if cls.DATA not in ("text", "synthetic"):
            small["DATA"] = "text"
        if cls.LENGTH_STAGES:
            small["LENGTH_STAGES"] = (8, 16)[: len(cls.LENGTH_STAGES)]
        if cls.LENGTH_START is not None:
            small |= {"LENGTH_START": 8, "LENGTH_MULTIPLE": 8}
        if cls.STAGED_STEPS is not None:
            small["STAGED_STEPS"] = 8
        if cls.WARM_START is not None:
            small["WARM_START"] = None  # its sizes are others
        if cls.DATA == "seqio":
            small |= {"DATA": "text", "SEQIO_TASK": None, "SEQIO_CACHED": False}  # no download
        return cls.derive(**small)

    def Train(self) -> fdl.Config:
        return fdl.Config(
            TrainProgram,
            input=self.pieces(self.staged(self.train_input())),
            num_steps=self.NUM_STEPS,
            log_every=self.LOG_EVERY,
            eval_every=self.EVAL_EVERY,
            save_every=self.SAVE_EVERY,
            warm_start=self.warm_start(),
            step_timeout=self.STEP_TIMEOUT,
        )

    def Test(self) -> fdl.Config:
        return fdl.Config(TestProgram, inputs={split: self.test_input(split) for split in ("validation", "test")})

    def pieces(self, source: fdl.Config) -> fdl.Config:
        """The input as it is, or its rows in pieces for truncated back-propagation (Williams and Peng 1990)."""
        if self.TBPTT_LEN is None:
            return source
        if self.SEQ_LEN % self.TBPTT_LEN:
            raise UsageError(f"TBPTT_LEN = {self.TBPTT_LEN} must divide SEQ_LEN = {self.SEQ_LEN}.")
        return fdl.Config(PiecesInput, source=source, batch_size=self.BATCH_SIZE, seq_len=self.TBPTT_LEN)

    def staged(self, source: fdl.Config) -> fdl.Config:
        """The input as it is, or with short rows first."""
        lengths = self.stage_lengths()
        if bool(lengths) != (self.STAGED_STEPS is not None):
            raise UsageError(
                f"STAGED_STEPS = {self.STAGED_STEPS} and the lengths of its stages, LENGTH_STAGES or LENGTH_START, go "
                f"together: set both, or none."
            )
        if not lengths:
            return source
        if self.TBPTT_LEN is not None:
            raise UsageError(f"TBPTT_LEN = {self.TBPTT_LEN} goes with whole rows: leave STAGED_STEPS out.")
        sizes = {"batch_size": self.BATCH_SIZE, "seq_len": self.SEQ_LEN}
        stages = {"lengths": lengths, "steps": self.STAGED_STEPS, "rows": self.STAGED_ROWS}
        return fdl.Config(StagedInput, source=source, **stages, **sizes)

    def stage_lengths(self) -> tuple[int, ...]:
        """Positions per row in each stage of short rows; none where all rows are whole."""
        start, multiple = self.LENGTH_START, self.LENGTH_MULTIPLE
        if list(self.LENGTH_STAGES) != sorted(self.LENGTH_STAGES):
            raise UsageError(f"LENGTH_STAGES = {self.LENGTH_STAGES} must grow.")
        if self.STAGED_STEPS is not None and self.STAGED_STEPS >= self.NUM_STEPS:
            raise UsageError(f"STAGED_STEPS = {self.STAGED_STEPS} must be below NUM_STEPS = {self.NUM_STEPS}.")
        if start is None:
            return self.LENGTH_STAGES
        if self.LENGTH_STAGES:
            raise UsageError(
                f"LENGTH_STAGES = {self.LENGTH_STAGES} and LENGTH_START = {start} both say how rows grow: choose one."
            )
        if start % multiple or self.SEQ_LEN % multiple:
            raise UsageError(
                f"LENGTH_MULTIPLE = {multiple} must divide LENGTH_START = {start} and SEQ_LEN = {self.SEQ_LEN}."
            )
        if start >= self.SEQ_LEN:
            raise UsageError(f"LENGTH_START = {start} must be below SEQ_LEN = {self.SEQ_LEN}.")
        return tuple(range(start, self.SEQ_LEN, multiple))

    def update_shapes(self) -> list[tuple[int, int]]:
        """(rows, positions) of all batches that updates see, each once, in order: `shapes()` of Train()'s input."""
        if self.TBPTT_LEN is not None:
            return [(self.BATCH_SIZE, self.TBPTT_LEN)]
        pieces = lambda length: self.SEQ_LEN // max(length, 1) if self.STAGED_ROWS == "reshape" else 1
        lengths = dict.fromkeys((*self.stage_lengths(), self.SEQ_LEN))
        return [(self.BATCH_SIZE * pieces(length), length) for length in lengths]

    def warm_start(self) -> fdl.Config | None:
        """Where weights come from, where not from initial values."""
        if self.WARM_START is None:
            return None
        chosen = {"checkpoint": self.WARM_START_CHECKPOINT, "optimizer": self.WARM_START_OPTIMIZER}
        return fdl.Config(WarmStart, workdir=self.WARM_START, **chosen)

    def train_input(self) -> fdl.Config:
        """Endless shuffled data."""
        common: dict[str, Any] = {"batch_size": self.BATCH_SIZE, "seq_len": self.SEQ_LEN, "seed": self.SEED}
        if self.DATA in ("synthetic", "seqio") and (self.ROWS != "cut" or self.DOCUMENT_MASKS):
            raise UsageError(f"ROWS and DOCUMENT_MASKS do nothing for DATA = {self.DATA}, which packs its own rows.")
        if self.DATA == "synthetic":
            return fdl.Config(SyntheticPackedInput, vocab_size=self.VOCAB_SIZE, **common)
        if self.DATA == "mixture":
            return self.mixed_rows(**common)
        if self.DATA == "seqio":
            cache = {"use_cached": self.SEQIO_CACHED, "cache_dir": self.SEQIO_CACHE_DIR}
            return fdl.Config(SeqioInput, task=self.seqio_task, objective=self.SEQIO_OBJECTIVE, **cache, **common)
        return self.token_rows(self.DATA, None, **common)

    def test_input(self, split: str) -> fdl.Config:
        """One pass over held-out data of the same source as Train()'s, whatever was set there."""
        config = self.Train().input
        wrapped = self.TBPTT_LEN is not None or self.STAGED_STEPS is not None
        config = config.source if wrapped else config  # whole rows are judged
        return self.hold_out(config, split)

    def hold_out(self, config: fdl.Config, split: str) -> fdl.Config:
        """Makes the training input's config into that of a held-out split."""
        if self.DATA == "synthetic":
            config.batches, config.offset = 4, {"validation": 10**8, "test": 2 * 10**8}[split]
            return config
        if self.DATA == "seqio":
            config.split_instead = "validation" if split == "test" else None
            config.num_epochs = 1
        return self.held_out(config, split, self.EVAL_ROWS if split == "validation" else None)

    @property
    def seqio_task(self) -> str:
        """The seqio task's name; raises a UsageError where there is none."""
        if self.SEQIO_TASK is None:
            raise UsageError("DATA = seqio reads a registered Task or Mixture: --set=SEQIO_TASK=NAME.")
        return self.SEQIO_TASK

    def vocabulary(self) -> fdl.Config:
        """What VOCABULARY says for text, the task's tokens for seqio, plain ids for synthetic data."""
        if self.DATA == "seqio":
            return fdl.Config(SeqioVocabulary, task=self.seqio_task, rows=self.vocab_size)
        if self.DATA == "synthetic":
            return fdl.Config(IdVocabulary, size=self.VOCAB_SIZE)
        if self.VOCABULARY == "sentencepiece":
            return fdl.Config(SentencePieceVocabulary, path=self.VOCABULARY_PATH)
        if self.VOCABULARY == "huggingface":
            return fdl.Config(HuggingFaceVocabulary, name=self.VOCABULARY_PATH)
        if self.VOCABULARY == "gpt2":
            return fdl.Config(Gpt2Vocabulary, path=self.VOCABULARY_PATH)
        return fdl.Config(ByteVocabulary)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return ByteVocabulary().size if self.in_bytes else self.VOCAB_SIZE

    @property
    def in_bytes(self) -> bool:
        """Whether tokens are bytes of text."""
        return self.DATA not in ("synthetic", "seqio") and self.VOCABULARY == "bytes"
