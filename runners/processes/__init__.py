"""Runs of several processes: joining, coordination, failure detection, consistency."""
