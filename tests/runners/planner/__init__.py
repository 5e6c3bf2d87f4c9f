"""Tests of the planner: cost, mesh search, collectives in HLO."""
