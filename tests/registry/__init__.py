"""Tests of experiments: names, overrides, entries, published sizes."""
