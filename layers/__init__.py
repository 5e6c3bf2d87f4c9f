"""Flax Linen modules: the parts that language models are made of."""

import runpy
from pathlib import Path

# Makes this package's siblings take precedence over a user's modules of the same names, whichever is imported first.
runpy.run_path(str(Path(__file__).parents[1] / "layers" / "roots.py"))["ours_first"]()
