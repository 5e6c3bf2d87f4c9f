"""Faults of training runs: scenarios, and corruption of checkpoints."""
