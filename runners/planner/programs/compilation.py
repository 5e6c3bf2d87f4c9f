"""Compilation of one step for a machine that need not be attached."""

import dataclasses
import re
import time
from typing import Any, Literal

import jax
import numpy as np

from layers.errors import first_line
from runners.flops import matmul_flops
from runners.planner.machine import Machine
from runners.planner.programs.buffers import Buffers, compile_with_buffers
from runners.planner.topologies import planned_cudnn
from runners.session import Session

Step = Literal["train", "decode"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled step."""

    compiled: Any  # jax.stages.Compiled; None where the compiler refused it for its memory
    shortage: dict[str, Any] | None  # message, needed_bytes and available_bytes of a program that was refused
    flops: int  # of matrix products on all devices, rematerialization included
    buffers: Buffers | None  # None if they are not asked for, or the compiler does not report them
    seconds: float  # to trace, lower and compile


def compile_step(
    session: Session,
    machine: Machine,
    step: Step = "train",
    lowered_step: tuple[Any, int] | None = None,
    *,
    with_buffers: bool = False,
) -> Program:
    """Compiles one update, or one decoded token per row of the batch after a full context.

    With buffers, the program is compiled even if JAX's compilation cache has it.

    Args:
      session: the experiment on the mesh.
      machine: what to compile for.
      step: which of the two.
      lowered_step: what `lower_step` has returned, if it was called before.
      with_buffers: also return the compiler's assignment of memory.
    Raises:
      jax.errors.JaxRuntimeError: the program does not compile for another reason than its memory.
    """
    began = time.perf_counter()
    lowered, flops = lowered_step or lower_step(session, machine, step)
    compiled = buffers = shortage = None
    try:
        with planned_cudnn(machine.target):  # each device's part of attention is lowered while compiling
            compiled, buffers = compile_with_buffers(lowered) if with_buffers else (lowered.compile(), None)
    except jax.errors.JaxRuntimeError as error:
        # The GPU compiler refuses no program for its memory: its RESOURCE_EXHAUSTED is a kernel's shared memory.
        shortage = None if machine.target is not None and machine.target.gpu else out_of_memory(str(error))
        if shortage is None:
            raise
    seconds = time.perf_counter() - began
    return Program(compiled=compiled, shortage=shortage, flops=flops, buffers=buffers, seconds=seconds)


def lower_step(session: Session, machine: Machine, step: Step = "train") -> tuple[Any, int]:
    """Lowers one step, without compiling it; returns it and the FLOPs of its matrix products on all devices."""
    with session.placed(), planned_cudnn(machine.target):
        return (_lower_train if step == "train" else _lower_decode)(session)


def _lower_train(session: Session) -> tuple[Any, int]:
    return session.functions.lower_step(session.abstract.batch, session.abstract.seed), train_flops(session)


def train_flops(session: Session) -> int:
    """Returns the FLOPs of the matrix products of an update on all devices, from its trace."""
    abstract = session.abstract
    return matmul_flops(session.functions.step, abstract.state, abstract.batch, abstract.seed)


def _lower_decode(session: Session) -> tuple[Any, int]:
    """Lowers one token after a full context: the training input's batch size, its sequence length as capacity."""
    rows, length = session.train.input.batch_size, session.train.input.seq_len
    start = jax.jit(lambda: session.task.init_decode_state(rows, length)).lower()
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        start.out_info,
        start.compile().output_shardings,
    )
    tokens = session.abstract.like(jax.ShapeDtypeStruct((rows, 1), np.int32), session.host_batches.sharding)
    arguments = (session.abstract.state.variables, tokens, state, tokens, tokens)
    jitted = jax.jit(session.task.decode_step, donate_argnums=2)
    return jitted.lower(*arguments), matmul_flops(session.task.decode_step, *arguments)


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
