"""Training and evaluation inputs: sources of batches."""
