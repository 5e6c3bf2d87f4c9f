"""Tests of launched runs under a real Slurm and Open MPI on this machine."""
