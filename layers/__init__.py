"""Flax Linen modules: the parts that language models are made of."""
