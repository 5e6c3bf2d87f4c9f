"""The site on a port of this machine, for browsers that restrict pages from disk."""

import functools
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from layers.errors import UsageError, first_line

HOST = "127.0.0.1"  # other machines cannot connect


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Returns a server of the folder, which listens already; port 0 takes a free one.

    Raises:
      UsageError: the port is invalid or in use.
    """
    handler = functools.partial(_Handler, directory=str(folder))
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--serve cannot use the port (got {port}): {first_line(error)}. Give another one.") from error


def serve(folder: Path, port: int) -> None:
    """Serves the folder until Ctrl-C."""
    with server(folder, port) as running:
        print(f"Serving http://{HOST}:{running.server_address[1]}/ until Ctrl-C", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print()


class _Handler(SimpleHTTPRequestHandler):
    """Serves files without a log line for each request, and without caching: the site may be written again."""

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def end_headers(self) -> None:
        """Adds the header that disables caching."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()
