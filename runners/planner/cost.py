"""Cost of a compiled step: memory, FLOPs, collectives and roofline time on a machine that need not be attached."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from registry.records.snapshot import totals, weight_summary
from runners.machine.chips import Chip
from runners.mesh import granule_factors, granule_numbers
from runners.planner import network
from runners.planner.machine import Machine
from runners.planner.pipeline import pipelines
from runners.planner.programs.compilation import Lowered, Program, Step, compile_step, memory
from runners.planner.programs.findings import Judged, attention_kernels, judge
from runners.planner.programs.hlo import collectives, loops_counted_once, summed
from runners.planner.programs.host_transfers import host_transfers
from runners.planner.programs.peaks import explain
from runners.session import Session
from tasks.task import Task
from tasks.weight_table import WeightTable

Plan = dict[str, Any]


def cost(
    session: Session,
    machine: Machine,
    step: Step = "train",
    lowered: Lowered | None = None,
    *,
    explained: bool = False,
) -> Plan:
    """Compiles one step and returns its memory, FLOPs and collectives, the content of plan.json.

    Bytes are per device. `peak` is the TPU or GPU compiler's peak memory; on virtual CPU devices it is arguments +
    outputs - aliased + temporaries, an upper bound. `gradients` is the size of one gradient per weight; gradients are
    temporaries, as are activations and copies. FLOPs count the matrix products on all devices, rematerialization
    included; `flops_per_token` is the model's alone, three times the forward pass. The roofline step time assumes that
    computation, the least memory traffic, the links of each mesh axis and the network across slices or hosts overlap
    perfectly; link times are estimates that assign each mesh axis one axis of the torus. `roofline_is_estimate` is true
    if the CPU compiler compiled the program: its collectives differ from the chip's, so the step time is not a bound.
    `fits` is the TPU compiler's answer if it compiled the program, else whether the peak is at most
    `capacity_bytes_per_device`, which a process can use of the chip's memory; the GPU compiler refuses no program for
    its memory. It is None if no chip is known.

    Args:
      session: the experiment on the mesh to plan for.
      machine: what to compile for; without a chip, capacity and speeds are omitted.
      step: one update, or one decoded token per row of the batch after a full context.
      lowered: what `lower_step` has returned, if it was called before.
      explained: also list the largest buffers at the peak and, of a GPU's program, its kernels and what would be slow.
        The program is then compiled even if JAX's compilation cache has it.
    """
    program = compile_step(session, machine, step, lowered, with_buffers=explained)
    plan = _planned(session, machine) | {
        "step": step,
        "memory_bytes_per_device": from_table(session.task, session.table, session.mesh_shape, step),
        "flops_per_step": program.trace.flops,
        "flops_per_token": session.throughput.flops_per_token,
        "tokens_per_step": _tokens(session, step),
        "fits": None,
        "collectives": [],
    }
    if program.compiled is None:
        plan |= {"fits": False, "compiler": program.shortage}
    else:
        text, numbers = program.compiled.as_text(), granule_numbers(session.mesh, session.across)
        plan |= _of_program(plan, program, machine, session, text, numbers)
        plan |= _explained(plan, program, machine, session, text, numbers) if explained else {}
    return plan | {"compile_seconds": program.seconds}


def _planned(session: Session, machine: Machine) -> Plan:
    """Returns what is planned, and for which machine."""
    chip = machine.chip
    return {
        "experiment": session.name,
        "smoke": session.experiment.smoke,
        "overrides": list(session.experiment.overrides),
        "topology": machine.topology,
        "chip": chip.name if chip else None,
        "devices": session.mesh.size,
        "mesh": dict(session.mesh_shape),
        "mesh_set_by": session.mesh_owner,
        "hbm_bytes_per_device": chip.hbm_bytes if chip else None,
        "capacity_bytes_per_device": machine.capacity,
    }


def _of_program(
    plan: Plan, program: Program, machine: Machine, session: Session, text: str, numbers: list[int]
) -> Plan:
    """Returns what the compiled program adds to a plan: memory, whether it fits, exchanges, step time."""
    chip, count = machine.chip, max(numbers) + 1
    exchanges = [*collectives(text, session.mesh_shape, numbers if count > 1 else ())]
    found = {
        "memory_bytes_per_device": plan["memory_bytes_per_device"]
        | memory(program.compiled, has_peak=machine.target is not None),
        "collectives": [dataclasses.asdict(total) for total in summed(exchanges)],
        "host_transfers": host_transfers(text),
        "across": _across(session, machine, numbers) if count > 1 else None,
        "loops_counted_once": loops_counted_once(text),
    }
    if session.experiment.stage_axis is not None and plan["step"] == "train":
        found["pipelines"] = pipelines(session, exchanges)
    if chip is not None:
        by_compiler = machine.target is not None and chip.gpu is None
        found["fits"] = by_compiler or found["memory_bytes_per_device"]["peak"] <= plan["capacity_bytes_per_device"]
        found |= _roofline(plan | found, chip)
    return found


def _across(session: Session, machine: Machine, numbers: list[int]) -> Plan:
    """Returns the slices or hosts of the mesh: their name, their number, and those along each axis."""
    factors = granule_factors(session.mesh_shape, numbers)
    return {"of": machine.granule, "count": max(numbers) + 1, "mesh": factors}


def _explained(plan: Plan, program: Program, machine: Machine, session: Session, text: str, numbers: list[int]) -> Plan:
    """Returns the buffers at the peak, memory over the schedule, kernels and, of a GPU's program, findings."""
    peak = plan["memory_bytes_per_device"]["peak"]
    rows = weight_summary(session.experiment, session.mesh_shape)["weights"]
    shapes = {row["path"]: row["shape"] for row in rows}
    found = explain(text, program.buffers, shapes, peak, has_peak=machine.target is not None)
    if machine.target is None:
        return found
    judged = Judged(
        text=text,
        experiment=session.experiment,
        weights=shapes,
        length=session.train.input.seq_len,
        attention=program.trace.attention,
        mesh=session.mesh_shape,
        granules=numbers,
        peak=peak,
    )
    return found | (attention_kernels(judged) if machine.target.gpu is None else judge(judged))


def _tokens(session: Session, step: Step) -> int:
    return session.train.input.batch_size * (session.train.input.seq_len if step == "train" else 1)


def from_table(task: Task, table: WeightTable, mesh: Mapping[str, int], step: Step) -> dict[str, int]:
    """Bytes per device of weights, optimizer and gradients from the weight table, known before compilation."""
    sums = totals(task, table, mesh)
    if step == "decode":
        return {"weights": sums["bytes_per_device"], "optimizer": 0, "gradients": 0}
    slots, gradients = sums["optimizer_bytes_per_device"], sums["gradient_bytes_per_device"]
    return {"weights": sums["bytes_per_device"], "optimizer": slots, "gradients": gradients}


def _roofline(plan: Plan, chip: Chip) -> Plan:
    """Returns the bounds of the step time by computation, memory, transfers and links, and the resulting speed.

    The forward pass moves activations to the host and the backward pass moves them back, one after the other.
    """
    memory, decoding = plan["memory_bytes_per_device"], plan["step"] == "decode"
    # At least, arguments are read and outputs written; a decoding step writes one position of its cache.
    traffic = memory["arguments"] + memory["outputs"] - (memory["aliased"] if decoding else 0)
    peak = chip.flops * plan["devices"]
    bounds = {"compute_seconds": plan["flops_per_step"] / peak, "memory_seconds": traffic / chip.hbm_bandwidth}
    if chip.host_bandwidth and (moved := sum(plan["host_transfers"].values())):
        bounds["host_seconds"] = moved / chip.host_bandwidth
    links = network.bounds(plan["collectives"], chip)
    step = max(*(bounds | links).values(), network.shared_seconds(links))
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
