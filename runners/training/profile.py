"""Profiling: times and traces a few training steps."""

import contextlib
import statistics
import time
from typing import Any

import jax

from layers.errors import UsageError
from registry.tool.render import amount
from runners.session import Session
from tasks.storage.files import Place
from tasks.storage.staged_folder import StagedFolder

WARMUP = 3
FOLDER = "profile"


def profile(session: Session, workdir: Place, steps: int) -> int:
    """Times `steps` training steps, then traces as many into profile/ for Perfetto and TensorBoard; returns 0."""
    if steps < 1:
        raise UsageError(f"--profile_steps must be at least 1 (got {steps}).")
    with session.placed():
        # Full-length rows, as in most of the run.
        batches = session.host_batches.iterate(session.train.input, {"next_batch": session.train.input.short_batches})
        batch, _ = next(batches)
        began = time.perf_counter()
        update = session.functions.compile_step(batch)
        print(f"{session.name}: compiled in {time.perf_counter() - began:.1f} s")
        state = session.functions.init()
        for _ in range(WARMUP):
            state = jax.block_until_ready(update(state, batch, session.seed))
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            state = jax.block_until_ready(update(state, batch, session.seed))
            times.append(time.perf_counter() - began)
        # One process traces its own devices, because all devices do the same.
        files = StagedFolder(workdir / FOLDER)
        trace = jax.profiler.trace(str(files.folder), create_perfetto_trace=True)
        with trace if session.processes.primary else contextlib.nullcontext():
            for number in range(steps):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    state = jax.block_until_ready(update(state, next(batches)[0], session.seed))
        files.close()
    median = statistics.median(times)
    shape = batch.inputs.shape
    rate = batch.inputs.size / median
    low, high = min(times) * 1e3, max(times) * 1e3
    print(f"step: median {median * 1e3:.1f} ms, fastest {low:.1f} ms, slowest {high:.1f} ms over {steps} steps")
    flops = amount(int(session.throughput.update_flops(shape) / median))
    print(f"      {rate:,.0f} tokens/s, {flops}FLOP/s in matrix products")
    if (utilization := session.throughput.mfu({shape: 1}, median)) is not None:
        print(f"      MFU {utilization:.1%}")
    print(_where(workdir))
    return 0


class TraceWindow:
    """A trace of some updates of a training run, from update `first` on (None: no trace)."""

    def __init__(self, workdir: Place, first: int | None, steps: int):
        if steps < 1:
            raise UsageError(f"--profile_steps must be at least 1 (got {steps}).")
        self.workdir, self.first, self.steps = workdir, first, steps
        self.running = False
        self._files: StagedFolder | None = None

    def before(self, step: int, state: Any) -> None:
        """Starts or ends the trace before update `step`; waits for queued updates when it does."""
        if self.first is None:
            return
        if step == self.first:
            jax.block_until_ready(state)
            self._files = StagedFolder(self.workdir / FOLDER)
            jax.profiler.start_trace(str(self._files.folder), create_perfetto_trace=True)
            self.running = True
        elif step == self.first + self.steps:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Ends the trace if it is running."""
        if self._files is not None and self.running:
            jax.profiler.stop_trace()
            self._files.close()
            print(_where(self.workdir), flush=True)
        self.running = False


def _where(workdir: Place) -> str:
    return f"Trace: {workdir / FOLDER} (perfetto_trace.json.gz opens at ui.perfetto.dev)"
