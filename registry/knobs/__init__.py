"""Knobs of an experiment that have no effect."""
