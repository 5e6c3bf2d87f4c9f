"""The registered experiments, one file per family."""
