"""The modules seqio and tensorflow, imported on first use."""

import contextlib
import sys
from typing import Any

from layers.errors import first_line, missing_package
from tasks.quiet_imports import quiet_native_code, tensorflow


def libraries() -> tuple[Any, Any]:
    """Returns the modules seqio and tensorflow; TensorFlow does not use the accelerators, which JAX needs.

    Raises:
      UsageError: one of them is not installed.
    """
    with quiet_native_code() if "seqio" not in sys.modules else contextlib.nullcontext():
        try:
            tf = tensorflow()
            import seqio
        except ImportError as error:
            raise missing_package("DATA = seqio", f"seqio ({first_line(error)})", "seqio") from error
    return seqio, tf
