"""Tests of the site of the registry."""
