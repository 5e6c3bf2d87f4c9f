"""Weights: their creation and initial values, and several products of one input as one."""
