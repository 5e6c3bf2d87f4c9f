"""Health of a run: the first value that is not finite, slow processes, updates that are computed twice."""
