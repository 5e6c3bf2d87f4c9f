"""Starts a run on many machines: `python -m launch TARGET [options] -- RUNNER FLAGS`."""
