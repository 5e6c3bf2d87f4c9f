"""Tests of the coordinate check and of sweeps over widths."""
