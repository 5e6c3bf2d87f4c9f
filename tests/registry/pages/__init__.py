"""Tests of the frame of pages and of charts."""
