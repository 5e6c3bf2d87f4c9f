"""Compiled programs: lowering, compilation, and what their text says."""
