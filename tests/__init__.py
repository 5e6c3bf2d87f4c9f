"""Tests of all packages, in folders that mirror the source tree."""
