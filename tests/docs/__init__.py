"""Tests of the documentation: commands, output, tables, notebooks."""
