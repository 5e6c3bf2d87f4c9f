"""Tests of sequence mixers and their decoding states."""
