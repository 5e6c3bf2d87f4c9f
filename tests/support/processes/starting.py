"""Starting several processes that train together."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testing.launches import free_port
from tests.conftest import ROOT, xla_flags
from tests.support.processes.scenarios import CODE, MARK


def flags(count: int, index: int, port: int) -> list[str]:
    return [f"--coordinator=localhost:{port}", f"--num_processes={count}", f"--process_id={index}"]


def launch(module: str, arguments, cwd, devices: int, **environment: str) -> subprocess.Popen:
    """One process of a module, with so many virtual devices."""
    env = {**os.environ, "XLA_FLAGS": xla_flags(devices), "PYTHONPATH": f"{cwd}:{ROOT}", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=cwd, env=env, **pipes)


def start(module: str, count: int, devices: int, arguments, cwd, **environment: str) -> list[subprocess.Popen]:
    """Starts `count` processes of a module; `arguments` and `cwd` are the same for all, or functions of the index."""
    port, started = free_port(), []
    for index in range(count):
        own, folder = (given(index) if callable(given) else given for given in (arguments, cwd))
        where = flags(count, index, port) if count > 1 else []
        started.append(launch(module, [*where, *own], folder, devices, **environment))
    return started


def finish(started: Sequence[subprocess.Popen], timeout: float = 900) -> list[subprocess.CompletedProcess]:
    """Waits for all."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, out, err)
        for process, (out, err) in zip(started, outputs, strict=True)
    ]


def run(module: str, count: int, devices: int, arguments, cwd, **environment: str):
    """`start`, and `finish` with success."""
    ended = finish(start(module, count, devices, arguments, cwd, **environment))
    assert all(process.returncode == 0 for process in ended), [
        (p.returncode, p.stdout[-2000:], p.stderr) for p in ended
    ]
    return ended


def carry_out(scenarios: dict[str, Any], count: int, devices: int, folder: Path):
    """Runner commands by name, one after the other in the same processes; returns what came of them by name.

    Args:
      scenarios: by name, the folder and the arguments of a command, or a function that gives them for each process.
      count: of processes.
      devices: virtual ones of each process.
      folder: where the processes start.
    """
    places = {
        name: [given(index) if callable(given) else given for index in range(count)]
        for name, given in scenarios.items()
    }
    file = folder / "scenarios.json"
    file.write_text(json.dumps(places, default=str))
    ended = run("tests.support.processes.scenarios", count, devices, [str(file)], folder)
    return {name: [_part(process, name) for process in ended] for name in scenarios}


def _part(process: subprocess.CompletedProcess, name: str) -> subprocess.CompletedProcess:
    """What a process printed in one scenario, and its exit code there."""
    out, err = (text.partition(f"{MARK}{name}\n")[2].partition(MARK)[0] for text in (process.stdout, process.stderr))
    err, _, code = err.partition(CODE)
    return subprocess.CompletedProcess(process.args, int(code), out, err)
