"""What native libraries write to standard error while they load."""

import os
import subprocess
import sys

import pytest

from tasks.quiet_imports import quiet_native_code
from tests.conftest import ROOT

NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795401089.440084    7926 port.cc:153] oneDNN custom operations are on.",
    "2026-01-01 10:00:00.123456: W tensorflow/core/util/port.cc:153] no TensorRT",
    "E0000 00:00:1795401092.072060    7926 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
)
NEWS = (
    "E0000 00:00:1795401092.072060    7926 slow.cc:52] Very slow compile?",
    "F0000 00:00:1795401092.072060    7926 tsl.cc:52] Check failed: out of memory",
    "terminate called after throwing an instance of 'std::bad_alloc'",
)

ABORTS = """
import os
from tasks.quiet_imports import quiet_native_code
with quiet_native_code():
    os.write(2, b"Check failed: the last words\\n")
    os.abort()
"""


def test_levels_below_error_are_dropped_and_the_rest_passes(capfd):
    with quiet_native_code():
        os.write(2, "".join(f"{line}\n" for line in (*NOISE, *NEWS)).encode())
        print("of Python", file=sys.stderr)
    os.write(2, b"after\n")
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == sorted([*NEWS, "of Python", "after"])
    assert [line for line in lines if line in NEWS] == [*NEWS]
    assert lines[-1] == "after"


def test_without_a_filter_everything_passes(capfd, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with quiet_native_code():
        os.write(2, b"I0000 loud\n")
    assert capfd.readouterr().err == "I0000 loud\n"


def test_what_is_written_before_an_abort_is_shown():
    with pytest.raises(subprocess.CalledProcessError) as ended:
        subprocess.run([sys.executable, "-c", ABORTS], cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert ended.value.stderr == b"Check failed: the last words\n"
