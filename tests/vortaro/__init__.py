"""Tests of the Python API and the command `vortaro`."""
