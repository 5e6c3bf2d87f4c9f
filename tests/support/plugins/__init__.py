"""Pytest plugins: commands in the process of the tests, checks of array shapes, one line of progress."""
