"""Launchers that start a run on many machines: `python -m launch TARGET [options] -- RUNNER FLAGS`."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "layers" / "roots.py"))["ours_first"]()
