"""Tests of the generation loop and the samplers."""
