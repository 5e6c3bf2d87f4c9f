"""Compiled programs: lowering, compilation, and the collectives in their text."""
