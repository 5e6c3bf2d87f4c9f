"""The training loop, and what it reads and writes: checkpoints, metrics, the run folder."""
