"""Weights: their creation, initial values and partition specs."""
