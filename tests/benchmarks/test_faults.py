"""Runs with faults end in the same bits as runs without; the full table is `make faults`."""

import http.client
import http.server
import json
import shutil
import subprocess
import sys
import threading

import pytest

from benchmarks.faults import run_scenarios, table
from registry.resolve import resolve
from testing.faults.bench import OTHER, SAME, SKIPPED, STOPPED, Bench, Outcome
from testing.faults.runs import RUNS
from testing.faults.store_proxy import CUT, DENIED, LOST, SILENT, UNAVAILABLE, proxied
from testing.launches import SETTINGS, differences, metrics

# Prints the shift of each clock in hours, after a jump of two hours; the argument is the file.
CLOCKS = """
import datetime, pathlib, sys, time
from testing.faults.shifted_clock import shift
before = time.time(), datetime.datetime.now(datetime.UTC), time.monotonic()
file = pathlib.Path(sys.argv[1])
shift(file)
file.write_text("7200")
jumps = time.time() - before[0], (datetime.datetime.now(datetime.UTC) - before[1]).total_seconds()
print([round(seconds / 3600) for seconds in (*jumps, time.monotonic() - before[2])])
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Runs without faults are shared."""
    return Bench(tmp_path_factory.mktemp("faults"), RUNS["dense"], seed=1, small=True)


# Signals, silent and stuck processes: tests/runners/processes/test_processes_stop.py.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("kill", 3), ("corruption", 4), ("full", 1), ("store", 2), ("clock", 3)])
def test_a_run_with_faults_and_restarts_ends_in_the_same_bits(bench, kind, least):
    outcomes = run_scenarios(bench, [kind])
    if outcomes[0].result == SKIPPED:
        pytest.skip(outcomes[0].detail)
    assert [outcome for outcome in outcomes if outcome.result != SAME] == []
    assert len(outcomes) >= least, "the runs ended before the faults"


@pytest.mark.slow  # shares its run without faults
def test_one_changed_figure_is_a_difference(bench, tmp_path):
    reference = bench.reference((1, 1))
    copy = shutil.copytree(reference, tmp_path / "copy")
    assert differences(reference, copy) == []
    lines = metrics(copy)
    lines[3]["grad_norm"] *= 1 + 1e-15
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(copy / "checkpoints" / "120")
    differing_items = differences(reference, copy)
    assert "metrics.jsonl" in differing_items
    assert "step" in differing_items
    assert len(differing_items) > 20, "weights and moments differ at step 110"


def test_the_table_counts_outcomes():
    results = [("a", SAME, "dense"), ("a", OTHER, "dense"), ("a", STOPPED, "vq"), ("b", SKIPPED, "vq")]
    rows = table([Outcome(row, result, "", run) for row, result, run in results]).splitlines()
    assert rows[0] == "| fault | dense | VQ, carried state | trials | same bits | clear stop | other |"
    assert rows[2:] == [
        "| a | 2 / 1 | 1 / 0 | 3 | 1 | 1 | 1 |",
        "| b |  | skipped | 0 | 0 | 0 | 0 |",
        "| all | 2 / 1 | 1 / 0 | 3 | 1 | 1 | 1 |",
    ]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_each_kind_of_run_has_settings_that_resolve(run, tmp_path):
    assert resolve(run.experiment, [*SETTINGS, *run.overrides(tmp_path)], smoke=True).NUM_STEPS == 120


def test_a_clock_jumps_and_the_monotonic_one_does_not(tmp_path):
    done = subprocess.run([sys.executable, "-c", CLOCKS, str(tmp_path / "0")], capture_output=True, text=True)
    assert done.stdout == "[2, 2, 0]\n", done.stderr


@pytest.fixture(scope="module")
def store():
    """A server that keeps the bodies of writes; gives its address and the bodies."""
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.command == "POST":
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"stored")

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


@pytest.mark.parametrize(
    ("outage", "read", "write", "is_stored"),
    [
        (None, 200, 200, True),
        (UNAVAILABLE, 503, 503, False),
        (DENIED, 200, 403, False),
        (CUT, 200, None, False),
        (LOST, 200, None, True),
        (SILENT, None, None, False),
    ],
)
def test_a_store_fails_as_requested(store, outage, read, write, is_stored):
    address, bodies = store
    bodies.clear()
    with proxied(address) as proxy:
        proxy.outage = outage
        if outage == SILENT:
            threading.Timer(0.2, lambda: setattr(proxy, "outage", None)).start()
        assert status(proxy, "GET", None) == read
        proxy.outage = outage
        if outage == SILENT:
            threading.Timer(0.2, lambda: setattr(proxy, "outage", None)).start()
        assert status(proxy, "POST", b"content") == write
        assert proxy.failed == [read, write].count(None) + sum(code != 200 for code in (read, write) if code)
    assert bodies == ([b"content"] if is_stored else [])


def status(proxy, method, body):
    """The status of the answer; None if the connection is closed without one."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=10)
    try:
        connection.request(method, "/object", body)
        return connection.getresponse().status
    except (http.client.HTTPException, ConnectionError):
        return None
    finally:
        connection.close()
