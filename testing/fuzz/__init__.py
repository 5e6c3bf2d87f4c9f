"""Fuzzed inputs: every kind of file and text that a user gives, mutated by a seeded generator, and read."""
