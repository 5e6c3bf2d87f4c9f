"""Tests of data inspection and vocabulary training."""
