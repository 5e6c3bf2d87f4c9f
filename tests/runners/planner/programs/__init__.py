"""Tests of runners.planner.programs."""
