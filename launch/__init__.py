"""Launchers that start a run on many machines: `python -m launch TARGET [options] -- RUNNER FLAGS`."""

import runpy
from pathlib import Path

# Makes this package's siblings take precedence over a user's modules of the same names, whichever is imported first.
runpy.run_path(str(Path(__file__).parents[1] / "layers" / "roots.py"))["ours_first"]()
