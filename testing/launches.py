"""Training runs in separate processes, and the comparison of their final states."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from tasks.storage.jsonl import read_lines

ROOT = Path(__file__).parent.parent
STEPS = 120
SETTINGS = (f"NUM_STEPS={STEPS}", "SAVE_EVERY=10", "EVAL_EVERY=50", "LOG_EVERY=7", "DROPOUT=0.1", "BATCH_SIZE=8")
METRICS = "metrics.jsonl"
TIMINGS = ("tokens_per_second", "steps_per_second", "mfu")
PEER_TIMEOUT = 15  # seconds
JOIN_TIMEOUT = 40
_PRINTED = re.compile(r"^step +(\d+)/", re.MULTILINE)  # metrics of a window of updates
HANGS = 240  # seconds after which a process that should have exited counts as hung


def command(
    workdir: Path | str,
    settings: Sequence[str] = SETTINGS,
    *,
    experiment: str = "tiny.StdlibTiny",
    module: str = "runners.main",
) -> list[str]:
    """Returns the training command: a small model, saved often, at steps that are not multiples of LOG_EVERY."""
    flags = [f"--set={setting}" for setting in settings]
    main = [sys.executable, "-m", module, f"--exp={experiment}", "--smoke", f"--workdir={workdir}"]
    return [*main, "--no-tensorboard", *flags]


def metrics(workdir: Path) -> list[dict[str, Any]]:
    """Returns every line of metrics.jsonl without its timings."""
    lines = read_lines(workdir / METRICS)
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]


def last_state(workdir: Path) -> dict[str, np.ndarray]:
    """Returns every array of the newest checkpoint by its path."""
    newest = saved_steps(workdir)[-1]
    folder = (workdir / "checkpoints" / str(newest) / "state").absolute()
    reader = ocp.PyTreeCheckpointer()
    metadata: Any = reader.metadata(folder).item_metadata
    arguments = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata.tree
    )  # whatever its sharding was
    tree = reader.restore(folder, restore_args=arguments)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"step": np.asarray(newest), **{jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}}


def saved_steps(workdir: Path | str) -> list[int]:
    """Returns the steps of complete checkpoints, ascending."""
    return sorted(int(path.name) for path in Path(workdir, "checkpoints").glob("*") if path.name.isdigit())


def differences(reference: Path, other: Path) -> list[str]:
    """Returns the differences of two finished runs: arrays by path, metrics, saved extras; empty if bit-identical."""
    a, b = last_state(reference), last_state(other)
    bits = lambda array: (array.dtype, array.shape, array.tobytes())
    items = sorted(a.keys() ^ b.keys()) + [name for name in a if name in b and bits(a[name]) != bits(b[name])]
    if metrics(reference) != metrics(other):
        items.append("metrics.jsonl")
    if _extra(reference) != _extra(other):
        items.append("the saved `extra` item")
    return items


def _extra(workdir: Path) -> Any:
    return json.loads((workdir / "checkpoints" / str(saved_steps(workdir)[-1]) / "extra" / "metadata").read_text())


def free_port() -> int:
    """Returns a free port below the ephemeral ports, which systems assign to clients."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            port = random.randrange(15000, 30000)
            free.bind(("localhost", port))
            return port


def environment_of(devices: int, cache: Path | None) -> dict[str, str]:
    """Returns the environment variables of a process that trains.

    Args:
      devices: virtual CPU devices.
      cache: folder of JAX's compilation cache; None compiles in each process.
    """
    no_cache = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        "PYTHONPATH": str(ROOT),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **(no_cache if cache is None else {"JAX_COMPILATION_CACHE_DIR": str(cache)}),
    }


class Launch:
    """Processes of one start of the training command; their output is written to files.

    Args:
      workdir: the run folder, local or on an object store.
      processes: number of processes.
      devices: virtual CPU devices per process.
      cache: folder of JAX's compilation cache; None compiles in each process.
      logs: folder for their output.
      settings: in addition to SETTINGS.
      experiment: the name of the experiment.
      module: the module that runs the command.
      environment: further environment variables.
      peer_timeout: seconds without a heartbeat after which a process counts as failed.
    """

    def __init__(
        self,
        workdir: Path | str,
        processes: int,
        devices: int,
        cache: Path | None,
        logs: Path,
        *,
        settings: Sequence[str] = (),
        experiment: str = "tiny.StdlibTiny",
        module: str = "runners.main",
        environment: Mapping[str, str] | None = None,
        peer_timeout: int = PEER_TIMEOUT,
    ):
        self.workdir = workdir
        variables = environment_of(devices, cache) | dict(environment or {})
        self._logs = logs
        logs.mkdir(exist_ok=True)
        port = free_port()
        timeouts = [f"--join_timeout={JOIN_TIMEOUT}", f"--peer_timeout={peer_timeout}"]
        group_flags = [f"--coordinator=localhost:{port}", f"--num_processes={processes}", *timeouts]
        self.processes = []
        for index in range(processes):
            rank_flags = [*group_flags, f"--process_id={index}"] if processes > 1 else []
            arguments = [*command(workdir, (*SETTINGS, *settings), experiment=experiment, module=module), *rank_flags]
            with self._file(index, "out").open("w") as out, self._file(index, "err").open("w") as err:
                self.processes.append(subprocess.Popen(arguments, stdout=out, stderr=err, env=variables))

    def _file(self, index: int, kind: str) -> Path:
        return self._logs / f"{index}.{kind}"

    def out(self) -> str:
        """Standard output of process 0."""
        return self._file(0, "out").read_text()

    def err(self, index: int) -> str:
        """Standard error of a process."""
        return self._file(index, "err").read_text()

    def running(self) -> bool:
        """Returns whether any process is running."""
        return any(process.poll() is None for process in self.processes)

    def step(self) -> int:
        """Returns the last step whose metrics this launch has printed; 0 before the first."""
        return max(map(int, _PRINTED.findall(self.out())), default=0)

    def until(self, condition: Callable[[], bool], seconds: float = HANGS) -> bool:
        """Waits until `condition()`; returns False if all processes have exited or the time is over before."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.running() or time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def reach(self, step: int) -> bool:
        """Waits for metrics of this launch at `step` or later; returns False if all processes exit before."""
        return self.until(lambda: self.step() >= max(step, 1))

    def saving(self) -> bool:
        """Returns whether a checkpoint is being written: it has a temporary name until it is complete."""
        return any("orbax-checkpoint-tmp" in path.name for path in Path(self.workdir, "checkpoints").glob("*"))

    def send(self, number: int, index: int | None = None) -> None:
        """Sends a signal to a process, or to all."""
        for process in self.processes if index is None else [self.processes[index]]:
            if process.poll() is None:
                os.kill(process.pid, number)

    def codes(self, seconds: float = HANGS) -> list[int | None]:
        """Waits for all processes and returns their exit codes; kills those still running, whose code is None."""
        end = time.monotonic() + seconds
        codes: list[int | None] = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.send(signal.SIGKILL)
                process.wait()
                codes.append(None)
        return codes

    def sentence(self, index: int) -> str:
        """Returns the error message of a process; empty if it has none or several, or printed a traceback."""
        err = self.err(index)
        messages = [line for line in err.splitlines() if line.startswith("vortaro: ")]
        return messages[0] if len(messages) == 1 and "Traceback" not in err else ""
