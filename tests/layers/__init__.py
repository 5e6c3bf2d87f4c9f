"""Tests of the Flax modules against formulas and references."""
