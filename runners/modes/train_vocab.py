"""Trains a SentencePiece vocabulary on the texts of an experiment."""

import dataclasses
from typing import ClassVar

from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """--mode=train_vocab has no flags of its own."""

    needs_workdir: ClassVar[bool] = False  # it writes to VOCABULARY_PATH


def run(request: Request, options: Options) -> int:
    """Writes the vocabulary to VOCABULARY_PATH; returns the exit code."""
    from runners.data.train_vocab import train_vocab

    del options
    return train_vocab(request.experiment)
