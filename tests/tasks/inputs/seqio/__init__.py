"""Tests of inputs and vocabularies that use seqio."""
