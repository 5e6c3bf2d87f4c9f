"""The training loop and its files: checkpoints, metrics, the run folder."""
