"""The command `python -m registry`: verbs, tables, filters."""
