"""Models and numbers of references, and small experiments that tests vary."""
