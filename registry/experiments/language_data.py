"""What language models learn from and for how long: the part of the template that Train() and Test() come from."""

from typing import Literal

import fiddle as fdl

from layers.errors import UsageError
from registry.experiment import Experiment
from tasks.inputs.pieces import PiecesInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.text import TextInput
from tasks.programs import TestProgram, TrainProgram
from tasks.vocabulary import ByteVocabulary, IdVocabulary


class LanguageData(Experiment):
    """Bytes of text, or synthetic packed rows."""

    # Sizes of the data
    VOCAB_SIZE: int = 256  # of synthetic data; text has its 256 byte values
    SEQ_LEN: int = 128
    UPDATE_LEN: int | None = None  # positions per update: rows in pieces, the state carried along
    BATCH_SIZE: int = 16

    # Data and program
    DATA: Literal["text", "synthetic"] = "text"
    TEXT_PATH: str | None = None  # None is the source of Python's standard library
    SPLIT_FRACTIONS: tuple[float, ...] = (0.9, 0.05, 0.05)  # of a text file: train, validation, test
    EVAL_ROWS: int | None = 512  # windows of the validation split; None is all of it
    NUM_STEPS: int = 1000
    LOG_EVERY: int = 50
    EVAL_EVERY: int | None = 250
    SAVE_EVERY: int = 250

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
