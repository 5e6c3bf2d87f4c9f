"""Tests of conversion from and to the weight formats of other codes."""
