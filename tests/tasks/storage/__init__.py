"""Tests of files, locks, leases and JSON lines."""
