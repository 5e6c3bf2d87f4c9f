"""Weights: creation, initial values, and products with weights."""
