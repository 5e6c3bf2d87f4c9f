"""Tests of training runs: checkpoints, resumption, warm start, ZeRO, run folders."""
