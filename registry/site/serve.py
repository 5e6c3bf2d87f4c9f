"""The site on a port of this machine, for browsers that restrict pages from disk."""

import functools
import sys
import threading
import time
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from layers.errors import UsageError, VortaroError, first_line

REFRESH_SECONDS = 3.0  # between two searches for changes in run folders
HOST = "127.0.0.1"  # other machines cannot connect


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Returns a server of the folder, which listens already; port 0 takes a free one.

    Raises:
      UsageError: the port is invalid or in use.
    """
    handler = functools.partial(_Handler, directory=str(folder))
    try:
        return _Server((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--serve cannot use the port (got {port}): {first_line(error)}. Give another one.") from error


def serve(folder: Path, port: int, refresh: Callable[[], object] | None = None) -> None:
    """Serves the folder until Ctrl-C; calls `refresh`, which writes what has changed, every few seconds."""
    with server(folder, port) as running:
        if refresh is not None:
            threading.Thread(target=_repeat, args=(refresh,), daemon=True).start()
        print(f"Serving http://{HOST}:{running.server_address[1]}/ until Ctrl-C", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print()


def _repeat(refresh: Callable[[], object]) -> None:
    """Calls `refresh` until this process ends; an error is printed once, and the next call is made all the same."""
    before = ""
    while True:
        time.sleep(REFRESH_SECONDS)
        message = ""
        try:
            refresh()
        except (OSError, ValueError, VortaroError) as error:  # a run folder that is being written or removed
            message = f"registry: The pages of runs are not up to date: {first_line(error)}"
        if message and message != before:
            print(message, file=sys.stderr, flush=True)
        before = message


class _Server(ThreadingHTTPServer):
    """A server that a browser can open many connections to at once."""

    request_queue_size = 64  # connections that wait to be accepted; a page loads ten scripts, and the default is 5


class _Handler(SimpleHTTPRequestHandler):
    """Serves files without a log line for each request, and without caching: the site may be written again.

    The time in Last-Modified is rounded to seconds, so a browser that may store a file would show the first of two
    versions that are written within one second.
    """

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def end_headers(self) -> None:
        """Adds the header that disables caching."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()
