"""What tests and benchmarks share: data in all formats, training runs as processes, faults."""
