"""Modes of the runner, one module each: `Options`, whose fields are the flags, and `run(request, options)`."""

import pkgutil

MODES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
