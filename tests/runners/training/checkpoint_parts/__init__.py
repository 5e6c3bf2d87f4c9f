"""Tests of the parts of checkpoints."""
