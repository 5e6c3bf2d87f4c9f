"""The modules seqio and tensorflow, imported on first use."""

import contextlib
import sys
from typing import Any

from layers.errors import first_line, missing_package
from tasks.quiet_imports import quiet_native_code, tensorflow


def libraries() -> tuple[Any, Any]:
    """The modules seqio and tensorflow; TensorFlow leaves the accelerators to jax.

    Raises:
      UsageError: they are not installed.
    """
    with quiet_native_code() if "seqio" not in sys.modules else contextlib.nullcontext():
        try:
            tf = tensorflow()
            import seqio
        except ImportError as error:
            raise missing_package("DATA = seqio", f"seqio ({first_line(error)})", "seqio") from error
    return seqio, tf
