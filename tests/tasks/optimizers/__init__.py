"""Tests of optimizers and schedules."""
