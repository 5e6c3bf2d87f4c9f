"""Tests of rows of token ids: windows, packing, mixtures, the token cache."""
