"""Tests of the frame of pages."""
