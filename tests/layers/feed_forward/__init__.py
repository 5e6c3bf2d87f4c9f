"""Tests of experts and routing."""
