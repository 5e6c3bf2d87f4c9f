"""Tests of the launcher: scripts, requests, processes on this machine."""
