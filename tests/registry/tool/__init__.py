"""Tests of the command `python -m registry`."""
