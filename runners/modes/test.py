"""Evaluates a checkpoint on the test split."""

from runners.modes.validation import Options, run

__all__ = ["Options", "run"]
