"""Cost of a compiled step: memory, FLOPs, collectives and roofline time on a machine that need not be attached."""

import dataclasses
import re
import time
from typing import Any, Literal

import jax
import numpy as np

from layers.errors import first_line
from registry.records.snapshot import weight_summary
from runners.chips import Chip
from runners.flops import matmul_flops
from runners.planner.hlo import collective_totals, loops_counted_once
from runners.planner.topologies import planned_cudnn
from runners.session import Session

Step = Literal["train", "decode"]
Plan = dict[str, Any]


def cost(
    session: Session,
    chip: Chip | None,
    topology: str | None = None,
    step: Step = "train",
    memory_fraction: float | None = None,
) -> Plan:
    """Compiles one step and returns its memory, FLOPs and collectives, the content of plan.json.

    Bytes are per device. `peak` is the TPU or GPU compiler's peak memory; on virtual CPU devices it is arguments +
    outputs - aliased + temporaries, an upper bound. `gradients` is the size of one gradient per weight; gradients are
    temporaries, as are activations and copies. FLOPs count the matrix products on all devices, rematerialization
    included; `flops_per_token` is the model's alone, three times the forward pass. The roofline step time assumes that
    computation, the least memory traffic and the links of each mesh axis overlap perfectly; link times are estimates
    that assign each mesh axis one axis of the torus. `roofline_is_estimate` is true if the CPU compiler compiled the
    program: its collectives differ from the chip's, so the step time is not a bound. `fits` is the TPU compiler's
    answer if it compiled the program, else whether the peak is at most `capacity_bytes_per_device`, which a process can
    use of the chip's memory; the GPU compiler refuses no program for its memory. It is None if no chip is known.

    Args:
      session: the experiment on the mesh to plan for.
      chip: source of capacity and speeds; None omits them.
      topology: name of the topology, if the devices belong to one.
      step: one update, or one decoded token per row of the batch after a full context.
      memory_fraction: share of a GPU's memory that JAX preallocates; None: JAX's default.
    """
    began = time.perf_counter()
    target = None if topology is None else chip
    with session.placed(), planned_cudnn(target):
        lowered, flops = (_lower_train if step == "train" else _lower_decode)(session)
    plan = _machine(session, chip, topology, memory_fraction) | {
        "step": step,
        "memory_bytes_per_device": _from_table(session, step),
        "flops_per_step": flops,
        "flops_per_token": session.throughput.flops_per_token,
        "tokens_per_step": _tokens(session, step),
        "fits": None,
        "collectives": [],
    }
    try:
        with planned_cudnn(target):  # each device's part of attention is lowered while compiling
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        # The GPU compiler refuses no program for its memory: its RESOURCE_EXHAUSTED is a kernel's shared memory.
        shortage = None if target is not None and target.gpu else _out_of_memory(str(error))
        if shortage is None:
            raise
        plan |= {"fits": False, "compiler": shortage}
    else:
        plan["memory_bytes_per_device"] |= _memory(compiled, topology is not None)
        text = compiled.as_text()
        plan["collectives"] = [dataclasses.asdict(c) for c in collective_totals(text, session.mesh_shape)]
        plan["loops_counted_once"] = loops_counted_once(text)
        if chip is not None:
            by_compiler = topology is not None and chip.gpu is None
            plan["fits"] = by_compiler or plan["memory_bytes_per_device"]["peak"] <= plan["capacity_bytes_per_device"]
            plan |= _roofline(plan, chip)
    return plan | {"compile_seconds": time.perf_counter() - began}


def _machine(session: Session, chip: Chip | None, topology: str | None, memory_fraction: float | None) -> Plan:
    """Returns what is planned, and for which machine."""
    return {
        "experiment": session.name,
        "smoke": session.experiment.smoke,
        "overrides": list(session.experiment.overrides),
        "topology": topology,
        "chip": chip.name if chip else None,
        "devices": session.mesh.size,
        "mesh": dict(session.mesh_shape),
        "hbm_bytes_per_device": chip.hbm_bytes if chip else None,
        "capacity_bytes_per_device": chip.capacity(memory_fraction) if chip else None,
    }


def _lower_train(session: Session) -> tuple[Any, int]:
    arguments = (session.abstract.state, session.abstract.batch, session.abstract.seed)
    return session.functions.lower_step(*arguments[1:]), matmul_flops(session.functions.step, *arguments)


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


def _tokens(session: Session, step: Step) -> int:
    return session.train.input.batch_size * (session.train.input.seq_len if step == "train" else 1)


def _from_table(session: Session, step: Step) -> dict[str, int]:
    """Bytes per device of weights, optimizer and gradients from the weight table, known before compilation."""
    totals = weight_summary(session.experiment, session.mesh_shape)["totals"]
    if step == "decode":
        return {"weights": totals["bytes_per_device"], "optimizer": 0, "gradients": 0}
    slots, gradients = totals["optimizer_bytes_per_device"], totals["gradient_bytes_per_device"]
    return {"weights": totals["bytes_per_device"], "optimizer": slots, "gradients": gradients}


def _memory(compiled: Any, has_peak: bool) -> dict[str, int]:
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


def _roofline(plan: Plan, chip: Chip) -> Plan:
    """Returns the lower bounds of the step time by computation, memory and links, and the resulting speed."""
    memory, decoding = plan["memory_bytes_per_device"], plan["step"] == "decode"
    # At least, arguments are read and outputs written; a decoding step writes one position of its cache.
    traffic = memory["arguments"] + memory["outputs"] - (memory["aliased"] if decoding else 0)
    axes: dict[str, int] = {}
    for collective in plan["collectives"]:
        axes[collective["axis"]] = axes.get(collective["axis"], 0) + collective["bytes"]
    peak = chip.flops * plan["devices"]
    bounds = {"compute_seconds": plan["flops_per_step"] / peak, "memory_seconds": traffic / chip.hbm_bandwidth}
    links = {f"links_{axis}_seconds": total / chip.link_bandwidth for axis, total in axes.items()}
    step = max((bounds | links).values())
    # A decoding step runs the forward pass, a third of the work.
    work = plan["flops_per_token"] * plan["tokens_per_step"] / (3 if decoding else 1)
    return {
        "roofline": bounds | links,
        # The CPU's program sends more than the chip's: float32 for bfloat16, and unsharded sums.
        "roofline_is_estimate": bool(links) and plan["topology"] is None,
        "roofline_step_seconds": step,
        "roofline_tokens_per_second": plan["tokens_per_step"] / step,
        "roofline_mfu": work / (peak * step),
    }


def _out_of_memory(message: str) -> Plan | None:
    """Memory needed and available from an out-of-memory message of the compiler; None for other errors."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    amounts = [float(number) * 2 ** (10 * "KMGT".index(unit) + 10) for number, unit in _AMOUNT.findall(message)]
    numbers = dict(zip(("needed_bytes", "available_bytes"), map(int, amounts), strict=False))
    return {"message": first_line(message, 1000), **numbers}


_AMOUNT = re.compile(r"\b(\d+(?:\.\d+)?)([KMGT])\b")
