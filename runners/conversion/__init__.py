"""Weights in the formats of other codes: names, shapes, files."""
