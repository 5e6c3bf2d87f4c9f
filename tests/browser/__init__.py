"""Tests of pages in a browser: the Chromium of the distribution, driven by playwright (`make test-browser`)."""
