"""Tests of the benchmarks at small sizes, and of fault recovery."""
