"""Tests of runs on several processes: joining, coordination, stops."""
