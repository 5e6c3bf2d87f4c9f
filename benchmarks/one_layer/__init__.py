"""Benchmarks of one layer: attention, experts."""
