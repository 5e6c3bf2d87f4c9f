"""Tests of snapshots and the provenance of runs."""
