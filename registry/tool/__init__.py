"""Command `python -m registry`: verbs, tables, filters."""
