"""Profiling: a few steps under the profiler, and where their time goes."""

import statistics
import time
from pathlib import Path

import jax

from registry.render import amount
from runners.flops import matmul_flops, peak_flops
from runners.session import Session

WARMUP = 3


def profile(session: Session, workdir: Path, steps: int) -> int:
    """Times `steps` training steps, then traces as many into profile/ for Perfetto and TensorBoard."""
    with session.placed():
        batches = session.batches(session.train.input)
        batch, _ = next(batches)
        began = time.perf_counter()
        update = session.compile_step(batch)
        print(f"{session.name}: compiled in {time.perf_counter() - began:.1f} s")
        state = session.init()
        for _ in range(WARMUP):
            state = jax.block_until_ready(update(state, batch, session.seed))
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            state = jax.block_until_ready(update(state, batch, session.seed))
            times.append(time.perf_counter() - began)
        with jax.profiler.trace(str(workdir / "profile"), create_perfetto_trace=True):
            for number in range(steps):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    state = jax.block_until_ready(update(state, next(batches)[0], session.seed))
        forward = matmul_flops(lambda v, b: session.task.loss(v, b)[0], session.abstract_state.variables, session.sample_batch)
    median = statistics.median(times)
    tokens = session.sample_batch.inputs.size
    print(f"step: median {median * 1e3:.1f} ms, fastest {min(times) * 1e3:.1f} ms, slowest {max(times) * 1e3:.1f} ms over {steps} steps")
    print(f"      {tokens / median:,.0f} tokens/s, {amount(int(3 * forward / median))}FLOP/s in matrix products (3 x forward)")
    peak = peak_flops(jax.devices()[0])
    if peak:
        print(f"      MFU {3 * forward / median / (peak * jax.device_count()):.1%}")
    print(f"Trace: {workdir / 'profile'} (open perfetto_trace.json.gz at ui.perfetto.dev, or `tensorboard --logdir {workdir}`)")
    return 0
