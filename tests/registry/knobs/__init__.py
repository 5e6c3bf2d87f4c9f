"""Tests of knobs without effect."""
