"""Tests of vocabularies in files."""
