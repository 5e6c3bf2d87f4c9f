"""Tests of the source tree: requirements, shape annotations, plain words."""
