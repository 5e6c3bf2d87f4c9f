"""Benchmarks: comparisons measured side by side in one run, printed as tables."""
