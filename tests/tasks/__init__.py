"""Tests of the language-model task: train step, parametrization, weight table."""
