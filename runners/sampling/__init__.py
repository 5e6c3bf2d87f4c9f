"""Sampling from checkpoints, and decoding states kept in files."""
