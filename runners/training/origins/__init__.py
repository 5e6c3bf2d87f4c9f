"""What a run begins with: initial weights, those of another run, or the complete state of another run."""
