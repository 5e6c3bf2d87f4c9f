"""Starting several processes that train together."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from tests.conftest import ROOT, xla_flags


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def flags(count: int, index: int, port: int) -> list[str]:
    return [f"--coordinator=localhost:{port}", f"--num_processes={count}", f"--process_id={index}"]


def start(module: str, count: int, devices: int, arguments, cwd, **environment: str) -> list[subprocess.Popen]:
    """So many processes of a module; `arguments` and `cwd` are the same for all, or what a function says of each."""
    port, started = free_port(), []
    for index in range(count):
        own, folder = (given(index) if callable(given) else given for given in (arguments, cwd))
        env = {**os.environ, "XLA_FLAGS": xla_flags(devices), "PYTHONPATH": f"{folder}:{ROOT}", **environment}
        where = flags(count, index, port) if count > 1 else []
        command = [sys.executable, "-m", module, *where, *own]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=folder, env=env, **pipes))
    return started


def finish(started: Sequence[subprocess.Popen], timeout: float = 900) -> list[subprocess.CompletedProcess]:
    """Waits for all."""
    try:
        said = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, out, err)
        for process, (out, err) in zip(started, said, strict=True)
    ]


def run(module: str, count: int, devices: int, arguments, cwd, **environment: str):
    """`start`, and `finish` with success."""
    ended = finish(start(module, count, devices, arguments, cwd, **environment))
    assert all(process.returncode == 0 for process in ended), [
        (p.returncode, p.stdout[-2000:], p.stderr) for p in ended
    ]
    return ended
