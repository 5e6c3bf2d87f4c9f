"""Weights: creation, initial values, and fused products."""
