"""Scaling laws: ladders of models and budgets, and the loss of larger ones."""
