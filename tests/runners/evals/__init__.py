"""Tests of evaluation on tasks of lm-evaluation-harness."""
