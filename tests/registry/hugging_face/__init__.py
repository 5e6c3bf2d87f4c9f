"""Tests of config.json files: every key, published numbers, and the entries that are written."""
