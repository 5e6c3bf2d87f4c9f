"""Compilation of one step for a machine that need not be attached."""

import dataclasses
import re
import time
from typing import Any, Literal

import jax
import numpy as np

from layers.attention.implementations import Decision, recorded
from layers.errors import first_line
from runners.flops import matmul_flops_by_dtype
from runners.planner.machine import Machine
from runners.planner.programs.buffers import Buffers, compile_with_buffers
from runners.planner.topologies import planned_cudnn
from runners.session import Session

Step = Literal["train", "decode"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """One traced step."""

    traced: Any  # jax.stages.Traced
    flops: int  # of matrix products on all devices, rematerialization included
    attention: tuple[Decision, ...]  # implementations of attention, by layer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowered:
    """One lowered step, not compiled."""

    program: Any  # jax.stages.Lowered
    trace: Trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled step."""

    compiled: Any  # jax.stages.Compiled; None where the compiler refused it for its memory
    shortage: dict[str, Any] | None  # message, needed_bytes and available_bytes of a program that was refused
    trace: Trace
    buffers: Buffers | None  # None if they are not asked for, or the compiler does not report them
    seconds: float  # to trace, lower and compile


def compile_step(
    session: Session,
    machine: Machine,
    step: Step = "train",
    lowered: Lowered | None = None,
    *,
    with_buffers: bool = False,
) -> Program:
    """Compiles one update, or one decoded token per row of the batch after a full context.

    With buffers, the program is compiled even if JAX's compilation cache has it.

    Args:
      session: the experiment on the mesh.
      machine: what to compile for.
      step: which of the two.
      lowered: what `lower_step` has returned, if it was called before.
      with_buffers: also return the compiler's assignment of memory.
    Raises:
      jax.errors.JaxRuntimeError: the program does not compile for another reason than its memory.
    """
    began = time.perf_counter()
    lowered = lowered or lower_step(session, machine, trace_step(session, machine, step))
    compiled = buffers = shortage = None
    try:
        with planned_cudnn(machine.target):  # each device's part of attention is lowered while compiling
            program = lowered.program
            compiled, buffers = compile_with_buffers(program) if with_buffers else (program.compile(), None)
    except jax.errors.JaxRuntimeError as error:
        # The GPU compiler refuses no program for its memory: its RESOURCE_EXHAUSTED is a kernel's shared memory.
        shortage = None if machine.target is not None and machine.target.gpu else out_of_memory(str(error))
        if shortage is None:
            raise
    seconds = time.perf_counter() - began
    return Program(compiled=compiled, shortage=shortage, trace=lowered.trace, buffers=buffers, seconds=seconds)


def trace_step(session: Session, machine: Machine, step: Step = "train") -> Trace:
    """Traces one step for a machine: the program of its operations before it is split over devices."""
    with session.placed(), planned_cudnn(machine.target):
        abstract = session.abstract
        state = abstract.state  # computed by tracing one token, which is not the program whose attention is recorded
        with recorded() as attention:
            train = lambda: session.functions.trace_step(abstract.batch, abstract.seed)
            traced = train() if step == "train" else _trace_decode(session, state.variables)
    flops = matmul_flops_by_dtype(traced.jaxpr).total()
    return Trace(traced=traced, flops=flops, attention=tuple(dict.fromkeys(attention)))


def lower_step(session: Session, machine: Machine, trace: Trace) -> Lowered:
    """Lowers a traced step, without compiling it."""
    with session.placed(), planned_cudnn(machine.target):
        return Lowered(program=trace.traced.lower(), trace=trace)


def _trace_decode(session: Session, variables: Any) -> Any:
    """Traces one token after a full context: the training input's batch size, its sequence length as capacity."""
    rows, length = session.train.input.batch_size, session.train.input.seq_len
    start = jax.jit(lambda: session.task.init_decode_state(rows, length)).lower()
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        start.out_info,
        start.compile().output_shardings,
    )
    tokens = session.abstract.like(jax.ShapeDtypeStruct((rows, 1), np.int32), session.host_batches.sharding)
    arguments = (variables, tokens, state, tokens, tokens)
    return jax.jit(session.task.decode_step, donate_argnums=2).trace(*arguments)


def memory(compiled: Any, has_peak: bool) -> dict[str, int]:
    """Returns the bytes per device of a compiled program; `has_peak`: its compiler reports a peak."""
    stats = compiled.memory_analysis()
    parts = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
    }
    # The peak of the CPU compiler omits temporaries.
    most = parts["arguments"] + parts["outputs"] - parts["aliased"] + parts["temporaries"]
    return parts | {"peak": stats.peak_memory_in_bytes if has_peak else most}


def out_of_memory(message: str) -> dict[str, Any] | None:
    """Memory needed and available from an out-of-memory message of the compiler; None for other errors."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    amounts = [float(number) * 2 ** (10 * "KMGT".index(unit) + 10) for number, unit in _AMOUNT.findall(message)]
    numbers = dict(zip(("needed_bytes", "available_bytes"), map(int, amounts), strict=False))
    return {"message": first_line(message, 1000), **numbers}


_AMOUNT = re.compile(r"\b(\d+(?:\.\d+)?)([KMGT])\b")
