"""Evaluation on tasks of lm-evaluation-harness: its requests, scored and continued by the model of a session."""
