"""Tests of the runner: requests, flags, efficiency, FLOPs, huge pages."""
