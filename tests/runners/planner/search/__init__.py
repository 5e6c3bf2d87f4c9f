"""Tests of runners.planner.search."""
