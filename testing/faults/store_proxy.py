"""A proxy of HTTP before an object store that fails on request: errors, silence, interrupted writes, lost answers."""

import contextlib
import http.client
import http.server
import json
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import urlsplit

UNAVAILABLE = "every request is answered by 503"
SILENT = "no request is answered until its connection is closed"
CUT = "the connection is closed in the middle of each write"
LOST = "writes are stored, and their answers are lost"
DENIED = "writes are answered by 403"
OUTAGES = (UNAVAILABLE, SILENT, CUT, LOST, DENIED)
CONNECTION_HEADERS = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}


class StoreProxy(http.server.ThreadingHTTPServer):
    """Sends every request to the store at `address`, except while it fails.

    Attributes:
      outage: one of OUTAGES, or None.
      failed: number of requests that have failed.
    """

    daemon_threads = True

    def __init__(self, address: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = urlsplit(address).netloc
        self.outage: str | None = None
        self.failed = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The URL of this proxy."""
        return f"http://127.0.0.1:{self.server_port}"

    def fails(self, is_write: bool) -> str | None:
        """Returns the outage that a request meets, which is counted, or None."""
        with self._lock:
            outage = self.outage if is_write or self.outage in (UNAVAILABLE, SILENT) else None
            self.failed += outage is not None
            return outage

    def handle_error(self, request, client_address) -> None:
        """Ignores connections that the client has closed."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: StoreProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length, is_write = int(self.headers.get("Content-Length") or 0), self.command not in ("GET", "HEAD")
        outage = self.server.fails(is_write)
        body = self.rfile.read(length // 2 if outage == CUT else length)
        if outage == SILENT:
            while self.server.outage == SILENT:
                time.sleep(0.05)
        if outage in (SILENT, CUT):
            self.close_connection = True
        elif outage in (UNAVAILABLE, DENIED):
            status = HTTPStatus.SERVICE_UNAVAILABLE if outage == UNAVAILABLE else HTTPStatus.FORBIDDEN
            error = {"error": {"code": status.value, "message": status.phrase}}
            self._answer(status, {"Content-Type": "application/json"}, json.dumps(error).encode())
        else:
            self._forward(body, lost=outage == LOST)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    def _forward(self, body: bytes, *, lost: bool) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.server.store, timeout=60)) as store:
            store.request(self.command, self.path, body, dict(self.headers))
            answer = store.getresponse()
            content = answer.read()
        if lost:
            self.close_connection = True
        else:
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in CONNECTION_HEADERS}
            self._answer(answer.status, kept, content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def proxied(address: str) -> Iterator[StoreProxy]:
    """Runs a proxy of the store at an address inside the context."""
    with StoreProxy(address) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.outage = None
            proxy.shutdown()
