"""Tests of sampling from run folders, and of decoding states in files."""
