"""Optimizers built from the weight table, learning rate schedules, dtypes of optimizer slots."""
