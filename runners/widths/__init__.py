"""Experiments over several widths: coordinate check, learning rate sweep."""
