"""The hosts of a Cloud TPU slice find each other through its metadata server; here a fake one."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from testing.launches import free_port
from tests.support.processes.starting import finish, launch

pytestmark = pytest.mark.slow

TPU_HOST = "tests.support.processes.tpu_host"
COMMAND = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--workdir=run", "--set=NUM_STEPS=3"]


@contextlib.contextmanager
def metadata_server(worker: int, workers: int):
    """Fake metadata server of a worker; yields its address."""
    metadata = {
        "agent-worker-number": str(worker),
        "worker-network-endpoints": ",".join(f"unused:{index}:127.0.0.1" for index in range(workers)),
        "tpu-env": "ACCELERATOR_TYPE: 'v4-16'\n",
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            key = self.path.rpartition("/")[2]
            self.send_response(200 if key in metadata else 404)
            self.end_headers()
            self.wfile.write(metadata.get(key, "").encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def test_hosts_of_a_slice_need_no_flags(tmp_path):
    port = str(free_port())
    with metadata_server(0, 2) as first, metadata_server(1, 2) as second:
        started = [
            launch(
                TPU_HOST,
                [port, *COMMAND],
                tmp_path,
                2,
                GCE_METADATA_IP=address,
                JAX_PLATFORMS="",
            )
            for address in (first, second)
        ]
        ended = finish(started)
    assert [process.returncode for process in ended] == [0, 0], [process.stderr for process in ended]
    assert "on data=4 model=1" in ended[0].stdout
    assert ended[1].stdout == ""
