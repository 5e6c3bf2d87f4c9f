"""Shared code of tests and benchmarks: data in all formats, training runs in processes, faults."""
