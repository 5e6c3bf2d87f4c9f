"""Modes of the runner, one module each: `Options`, whose fields are the flags, and `run(request, options)`."""
