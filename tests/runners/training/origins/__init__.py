"""Tests of runs that begin with the weights or the state of another run."""
