"""The terminal, for what is shown while a command works."""

import os

from rich.console import Console


def progress_console() -> Console:
    """Returns the console of standard output.

    Under mpirun it is never a terminal: mpirun gives its processes one even if its own output is a file.
    """
    plain = False if "OMPI_COMM_WORLD_RANK" in os.environ else None
    return Console(highlight=False, soft_wrap=True, force_terminal=plain)
