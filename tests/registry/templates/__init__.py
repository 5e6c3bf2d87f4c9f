"""Tests of templates against the numbers of reference implementations."""
