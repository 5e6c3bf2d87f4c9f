"""The dictionary of experiments."""
