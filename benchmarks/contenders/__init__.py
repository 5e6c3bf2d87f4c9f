"""Codes that do the same work, each in a process of its own (benchmarks.alternation)."""
