"""Evaluates a checkpoint on the test split."""

import dataclasses
from typing import ClassVar

from runners.modes import validation
from runners.modes.validation import run

__all__ = ["Options", "run"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(validation.Options):
    """Flags of --mode=test."""

    splits: ClassVar[tuple[str, ...]] = ("test",)
