"""Data before training: inspection, vocabulary training."""
