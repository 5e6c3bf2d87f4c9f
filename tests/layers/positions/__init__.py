"""Tests of relative position biases."""
