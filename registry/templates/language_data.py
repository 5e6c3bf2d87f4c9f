"""The data part of the template: inputs, vocabulary, duration and intervals, for Train() and Test()."""

from typing import Any, Literal, Self

import fiddle as fdl

from layers.errors import UsageError
from registry.phase import Phase
from registry.study import Study
from registry.templates.data_sources import PAPER_DATA, Data
from registry.templates.phases import Phases
from registry.values import Positive, PositiveFloat
from tasks.inputs.length_curriculum import LengthCurriculumInput
from tasks.inputs.masked import MaskedInput
from tasks.inputs.seqio.rows import SeqioInput
from tasks.inputs.seqio.vocabulary import SeqioVocabulary
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.tbptt_chunks import TbpttInput
from tasks.programs import EvalTasks, TestProgram, TestProgramWithTasks, TrainProgram, WarmStart
from tasks.vocabularies.subwords import Gpt2Vocabulary, HuggingFaceVocabulary, SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary, IdVocabulary


class LanguageData(Phases):
    """The data knobs of the template: documents as tokens, rows of a seqio task, or synthetic packed rows."""

    # Data
    VOCAB_SIZE: Positive = 256  # rows of the embedding, at least as many as the vocabulary has tokens
    SEQ_LEN: Positive = 128  # positions per row
    TBPTT_LEN: Positive | None = None  # positions per update: reads rows in chunks with carried state (TBPTT)
    BATCH_SIZE: Positive = 16  # rows per update

    LENGTH_STAGES: tuple[Positive, ...] = ()  # positions per row in stages of equally many updates, before SEQ_LEN
    LENGTH_START: Positive | None = None  # first length of stages that grow up to SEQ_LEN by LENGTH_MULTIPLE
    LENGTH_MULTIPLE: Positive = 64  # difference of length between stages from LENGTH_START
    STAGED_STEPS: Positive | None = None  # total updates of all stages
    STAGED_ROWS: Literal["truncate", "reshape"] = "truncate"  # cut rows to the stage, or split them into more rows

    SENTENCEPIECE_MODEL: Literal["bpe", "unigram"] = "bpe"  # model type of --mode=train_vocab, with VOCAB_SIZE pieces
    VOCABULARY_BYTES: int = 10**9  # bytes of training text that --mode=train_vocab reads

    DATA: Literal[Data] = "text"  # kind of data source: see docs/howto/data.md
    OBJECTIVE: Literal["causal", "masked"] = "causal"  # predict the next token, or masked tokens from both sides (BERT)
    MASK_RATE: float = 0.12  # share of tokens replaced by MASK_ID, if masked
    RANDOM_RATE: float = 0.015  # share of tokens replaced by a random token, if masked
    SAME_RATE: float = 0.015  # share of tokens that stay unchanged but are predicted, if masked
    MASK_ID: int = 103  # id of the mask token
    TEXT_MASK_ID: int = 1  # the mask token of bytes: a byte that text does not contain
    EVAL_ROWS: int | None = 512  # rows of the validation split that are evaluated; None is all
    SEQIO_TASK: str | None = None  # name of a seqio Task or Mixture, with DATA = seqio
    SEQIO_OBJECTIVE: Literal["lm", "prefix_lm", "encoder"] = "lm"  # training objective; see tasks.inputs.seqio.rows
    SEQIO_CACHED: bool = False  # read the cache that seqio_cache_tasks wrote
    SEQIO_CACHE_DIR: str | None = None  # folder of that cache, local or gs://; None is those that modules register

    # Optimization
    NUM_STEPS: Positive = 1000  # number of updates
    PHASES: tuple[Phase, ...] = ()  # parts of the run with learning rates and knobs of their own: see registry.phase

    STUDY: Study | None = None  # cases with other knobs, which --mode=study trains and compares: see registry.study

    # Computation
    LOG_EVERY: Positive = 50  # updates between two lines of metrics
    WEIGHT_METRICS: bool = False  # log the norm of each weight and of its update over it, every LOG_EVERY updates
    EVAL_EVERY: int | None = 250  # updates between two evaluations; None: only at the end
    SAVE_EVERY: Positive = 250  # updates between two checkpoints
    KEEP_EVERY: Positive | None = None  # updates between two checkpoints that are kept for good; None: none
    SAVE_MINUTES: PositiveFloat | None = None  # minutes until a temporary checkpoint, which the next one replaces
    EVAL_TASKS: tuple[
        str, ...
    ] = ()  # tasks of lm-evaluation-harness, run with every evaluation: docs/howto/evaluate.md
    EVAL_TASK_PATH: str | None = None  # folder of further task files (YAML) for EVAL_TASKS
    EVAL_LIMIT: Positive | None = None  # documents of each of EVAL_TASKS; None is all
    EVAL_FEWSHOT: int | None = None  # solved examples in each prompt of EVAL_TASKS; None is that of the task file
    STEP_TIMEOUT: float | None = 1800.0  # seconds after which a hung update ends the run; None never
    REPLAY_EVERY: int = 0  # updates until one is computed twice, with a copy of the state, and compared; 0: none

    # Optimization
    WARM_START: str | None = None  # folder of a run with as many layers or fewer, whose weights replace initial ones
    WARM_START_CHECKPOINT: str = "last"  # checkpoint of WARM_START: last, best or a step number
    WARM_START_OPTIMIZER: bool = False  # restore the optimizer's moments and update count too

    @classmethod
    def Smoke(cls) -> type[Self]:
        """Returns a smoke-test variant: bytes and short stages; the other knobs are unchanged."""
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
            small["WARM_START"] = None  # the sizes of the weights differ
        if cls.DATA == "seqio":
            small |= {"DATA": "text", "SEQIO_TASK": None, "SEQIO_CACHED": False}  # no download
        return cls.derive(**small)

    def Train(self) -> fdl.Config:
        return fdl.Config(
            TrainProgram,
            input=self.run_input(),
            num_steps=self.NUM_STEPS,
            log_every=self.LOG_EVERY,
            weight_metrics=self.WEIGHT_METRICS,
            eval_every=self.EVAL_EVERY,
            save_every=self.SAVE_EVERY,
            keep_every=self.KEEP_EVERY,
            save_minutes=self.SAVE_MINUTES,
            warm_start=self.warm_start(),
            step_timeout=self.STEP_TIMEOUT,
            replay_every=self.REPLAY_EVERY,
        )

    def Test(self) -> fdl.Config:
        inputs = {split: self.test_input(split) for split in ("validation", "test")}
        if not self.EVAL_TASKS:
            return fdl.Config(TestProgram, inputs=inputs)
        return fdl.Config(TestProgramWithTasks, inputs=inputs, tasks=self.eval_tasks())

    def eval_tasks(self) -> fdl.Config:
        """Returns the tasks that run with every evaluation."""
        amounts = {"limit": self.EVAL_LIMIT, "num_fewshot": self.EVAL_FEWSHOT}
        return fdl.Config(EvalTasks, names=self.EVAL_TASKS, path=self.EVAL_TASK_PATH, **amounts)

    def phase_input(self) -> fdl.Config:
        return self.in_tbptt_chunks(self.with_length_curriculum(self.train_input()))

    def in_tbptt_chunks(self, source: fdl.Config) -> fdl.Config:
        """Returns the input, in chunks if back-propagation is truncated (TBPTT, Williams and Peng 1990)."""
        if self.TBPTT_LEN is None:
            return source
        if self.SEQ_LEN % self.TBPTT_LEN:
            raise UsageError(f"TBPTT_LEN must divide SEQ_LEN = {self.SEQ_LEN} (got {self.TBPTT_LEN}).")
        if self.OBJECTIVE != "causal":
            raise UsageError(
                f"TBPTT_LEN = {self.TBPTT_LEN} does not work with OBJECTIVE = {self.OBJECTIVE}. A carried state holds "
                f"earlier positions only: set TBPTT_LEN to none or OBJECTIVE to causal."
            )
        return fdl.Config(TbpttInput, source=source, batch_size=self.BATCH_SIZE, seq_len=self.TBPTT_LEN)

    def with_length_curriculum(self, source: fdl.Config) -> fdl.Config:
        """Returns the input, with stages of short rows first if they are set."""
        lengths = self.stage_lengths()
        if bool(lengths) != (self.STAGED_STEPS is not None):
            raise UsageError(
                f"STAGED_STEPS = {self.STAGED_STEPS} and the lengths of its stages, LENGTH_STAGES or LENGTH_START, "
                f"need each other. Set both or none."
            )
        if not lengths:
            return source
        if self.TBPTT_LEN is not None:
            raise UsageError(f"STAGED_STEPS does not work with TBPTT_LEN (got {self.TBPTT_LEN}). Remove one of them.")
        sizes = {"batch_size": self.BATCH_SIZE, "seq_len": self.SEQ_LEN}
        stages = {"lengths": lengths, "steps": self.STAGED_STEPS, "rows": self.STAGED_ROWS}
        return fdl.Config(LengthCurriculumInput, source=source, **stages, **sizes)

    def stage_lengths(self) -> tuple[int, ...]:
        """Returns positions per row in each stage of short rows; empty if all rows are full."""
        start, multiple = self.LENGTH_START, self.LENGTH_MULTIPLE
        if list(self.LENGTH_STAGES) != sorted(self.LENGTH_STAGES):
            raise UsageError(f"LENGTH_STAGES must increase (got {self.LENGTH_STAGES}).")
        if self.STAGED_STEPS is not None and self.STAGED_STEPS >= self.NUM_STEPS:
            raise UsageError(f"STAGED_STEPS must be below NUM_STEPS = {self.NUM_STEPS} (got {self.STAGED_STEPS}).")
        if start is None:
            return self.LENGTH_STAGES
        if self.LENGTH_STAGES:
            raise UsageError(
                f"LENGTH_STAGES = {self.LENGTH_STAGES} and LENGTH_START = {start} both set the stages. Remove one."
            )
        if start % multiple or self.SEQ_LEN % multiple:
            raise UsageError(
                f"LENGTH_MULTIPLE must divide LENGTH_START = {start} and SEQ_LEN = {self.SEQ_LEN} (got {multiple})."
            )
        if start >= self.SEQ_LEN:
            raise UsageError(f"LENGTH_START must be below SEQ_LEN = {self.SEQ_LEN} (got {start}).")
        return tuple(range(start, self.SEQ_LEN, multiple))

    def update_shapes(self) -> list[tuple[int, int]]:
        """Returns the distinct (rows, positions) of training batches, in order, as `shapes()` of Train()'s input."""
        if self.TBPTT_LEN is not None:
            return [(self.BATCH_SIZE, self.TBPTT_LEN)]
        pieces = lambda length: self.SEQ_LEN // max(length, 1) if self.STAGED_ROWS == "reshape" else 1
        lengths = dict.fromkeys((*self.stage_lengths(), self.SEQ_LEN))
        return [(self.BATCH_SIZE * pieces(length), length) for length in lengths]

    def warm_start(self) -> fdl.Config | None:
        """Returns the checkpoint whose weights replace initial ones, or None."""
        if self.WARM_START is None:
            return None
        chosen = {"checkpoint": self.WARM_START_CHECKPOINT, "optimizer": self.WARM_START_OPTIMIZER}
        return fdl.Config(WarmStart, workdir=self.WARM_START, **chosen)

    def train_input(self) -> fdl.Config:
        """Returns the input of training: endless shuffled data, masked if that is the objective."""
        source = self.train_rows()
        if self.OBJECTIVE == "causal":
            return source
        if self.masked_by_task:
            source.mask_id = self.MASK_ID
            return source
        return fdl.Config(
            MaskedInput,
            source=source,
            vocab_size=self.vocab_size,
            mask_id=self.TEXT_MASK_ID if self.in_bytes else self.MASK_ID,
            mask_rate=self.MASK_RATE,
            random_rate=self.RANDOM_RATE,
            same_rate=self.SAME_RATE,
            seed=self.SEED,
        )

    @property
    def masked_by_task(self) -> bool:
        """Returns whether a seqio task masks the tokens."""
        return self.OBJECTIVE == "masked" and self.DATA == "seqio" and self.SEQIO_OBJECTIVE == "encoder"

    def train_rows(self) -> fdl.Config:
        """Returns endless shuffled rows."""
        common: dict[str, Any] = {"batch_size": self.BATCH_SIZE, "seq_len": self.SEQ_LEN, "seed": self.SEED}
        if self.DATA in ("synthetic", "seqio") and (self.ROWS != "cut" or self.DOCUMENT_MASKS or self.MAX_SEGMENTS):
            raise UsageError(
                f"ROWS, DOCUMENT_MASKS and MAX_SEGMENTS have no effect with DATA = {self.DATA}, which packs its own "
                "rows. Remove them."
            )
        if self.DATA == "synthetic":
            return fdl.Config(SyntheticPackedInput, vocab_size=self.VOCAB_SIZE, **common)
        if self.DATA == "mixture":
            return self.mixture_rows(**common)
        if self.DATA == "seqio":
            cache = {"use_cached": self.SEQIO_CACHED, "cache_dir": self.SEQIO_CACHE_DIR}
            return fdl.Config(SeqioInput, task=self.seqio_task, objective=self.SEQIO_OBJECTIVE, **cache, **common)
        return self.token_rows(self.DATA, None, **common)

    def test_input(self, split: str) -> fdl.Config:
        """Returns one pass over held-out data of the source of Train(), whatever overrides it has."""
        config = self.Train().input
        if self.PHASES:
            config = config.phases[self.phase]
        wrapped = self.TBPTT_LEN is not None or self.STAGED_STEPS is not None
        config = config.source if wrapped else config  # evaluation uses full rows
        return self.hold_out(config, split)

    def hold_out(self, config: fdl.Config, split: str) -> fdl.Config:
        """Changes the config of the training input into that of a held-out split."""
        if self.OBJECTIVE == "masked" and not self.masked_by_task:
            config.source = self.hold_out_rows(config.source, split)
            return config
        return self.hold_out_rows(config, split)

    def hold_out_rows(self, config: fdl.Config, split: str) -> fdl.Config:
        """Changes the config of rows for training into that of a held-out split."""
        if self.DATA == "synthetic":
            config.batches, config.offset = 4, {"validation": 10**8, "test": 2 * 10**8}[split]
            return config
        if self.DATA == "seqio":
            config.split_instead = "validation" if split == "test" else None
            config.num_epochs = 1
        return self.held_out(config, split, self.EVAL_ROWS if split == "validation" else None)

    @property
    def seqio_task(self) -> str:
        """The name of the seqio task; raises a UsageError if it is not set."""
        if self.SEQIO_TASK is None:
            raise UsageError("DATA = seqio needs a registered Task or Mixture. Set it: --set=SEQIO_TASK=NAME.")
        return self.SEQIO_TASK

    def vocabulary(self) -> fdl.Config:
        """Returns the vocabulary: VOCABULARY for text, the task's for seqio, plain ids for synthetic data."""
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
        return fdl.Config(ByteVocabulary, special_tokens=self.bytes_vocabulary.special_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding; raises a UsageError if bytes need more."""
        least = self.bytes_vocabulary.size if self.in_bytes else 1
        if least > self.VOCAB_SIZE:
            raise UsageError(
                f"VOCAB_SIZE must be at least {least} for bytes (got {self.VOCAB_SIZE}). Set VOCAB_SIZE={least}."
            )
        return self.VOCAB_SIZE

    @property
    def bytes_vocabulary(self) -> ByteVocabulary:
        """The vocabulary of VOCABULARY = bytes."""
        has_special = self.DATA in PAPER_DATA or (self.DATA != "text" and self.SPECIAL_BYTES)
        return ByteVocabulary(special_tokens=3 if has_special else 0)

    @property
    def in_bytes(self) -> bool:
        """Returns whether tokens are bytes of text."""
        return self.DATA not in ("synthetic", "seqio") and self.VOCABULARY == "bytes"
