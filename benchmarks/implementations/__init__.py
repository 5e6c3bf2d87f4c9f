"""Implementations of the same work, each measured in its own process (benchmarks.implementations.alternation)."""
