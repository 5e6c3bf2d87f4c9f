"""Measurements, side by side in one run; each prints what it compares."""
