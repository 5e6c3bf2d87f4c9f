"""The entries, one file per family."""
