"""Tests of document sources, by format."""
