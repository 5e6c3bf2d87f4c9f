"""The plan of an experiment's small form on eight virtual devices, as golden files and diffs state it."""

import math
from typing import Any

import jax

from registry.experiment import Experiment, cls_key
from registry.resolve import resolve
from runners.flops import matmul_flops_by_dtype
from runners.machine.virtual_devices import make_virtual_devices
from runners.planner.cost import from_table
from runners.planner.machine import Machine
from runners.planner.programs.compilation import memory
from runners.planner.programs.hlo import collective_totals
from runners.session import Session

DEVICES = 8
# LLVM's work is left out, which changes no figure. The CPU compiler's newer fusions are off, as they depend on the
# processor.
COMPILER_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}

SmallPlan = dict[str, Any]


def use_devices() -> None:
    """Makes JAX use the virtual devices of small forms; call it before anything else uses JAX."""
    make_virtual_devices(DEVICES)


def small_form(experiment: Experiment) -> Experiment:
    """Returns the experiment as reduced by Smoke(), its mesh over eight devices, split along as many axes as possible.

    An experiment whose overrides state a mesh keeps it.
    """
    overrides = list(experiment.overrides)
    if not any(one.startswith("DEVICE_MESH_SHAPE=") for one in overrides):
        overrides.append(f"DEVICE_MESH_SHAPE={','.join(map(str, split_mesh(len(experiment.MESH_AXES))))}")
    return resolve(cls_key(type(experiment)), overrides, smoke=True)


def split_mesh(axes: int) -> tuple[int, ...]:
    """Returns the sizes of a mesh of eight devices: (8,), (2, 4), (2, 2, 2), (1, 2, 2, 2) and so on."""
    sizes = [1] * axes
    for turn in range(int(math.log2(DEVICES))):
        sizes[-1 - turn % axes] *= 2
    return tuple(sizes)


def small_plan(experiment: Experiment) -> SmallPlan:
    """Compiles one update of the experiment's small form and returns its plan, see `program_plan`.

    Raises:
      UsageError: the small form is not valid on eight devices.
    """
    devices = Machine(virtual_devices=DEVICES).devices(experiment)
    session = Session(small_form(experiment), devices)
    with session.placed():
        traced = session.functions.trace_step(session.abstract.batch, session.abstract.seed)
        return program_plan(session, traced, traced.lower().compile(COMPILER_OPTIONS))


def program_plan(session: Session, traced: jax.stages.Traced, compiled: jax.stages.Compiled) -> SmallPlan:
    """Returns the figures of a compiled update on virtual CPU devices.

    Returns:
      mesh: axis sizes.
      tokens_per_step: positions of a batch.
      flops_per_token: of the model's matrix products, three times the forward pass.
      flops_per_step: of the update's matrix products on all devices, by the dtype of their operands in JAX.
      bytes_per_device: weights, optimizer, gradients (from the weight table); arguments, outputs, aliased (outputs in
        the memory of donated arguments), temporaries and accessed (read and written by all operations, those in loops
        counted once), from the compiler.
      exchanges: count and bytes sent per device and step, by kind, mesh axis and element type in the program.
    """
    source, bytes_of = session.train.input, memory(compiled, has_peak=False)
    bytes_of.pop("peak")
    totals = collective_totals(compiled.as_text() or "", session.mesh_shape)
    return {
        "mesh": dict(session.mesh_shape),
        "tokens_per_step": source.batch_size * source.seq_len,
        "flops_per_token": session.throughput.flops_per_token,
        "flops_per_step": dict(sorted(matmul_flops_by_dtype(traced.jaxpr).items())),
        "bytes_per_device": from_table(session.task, session.table, session.mesh_shape, "train")
        | bytes_of
        | {"accessed": int((compiled.cost_analysis() or {})["bytes accessed"])},
        "exchanges": {
            f"{one.kind} {one.axis} {one.dtype}": {"count": one.count, "bytes": one.bytes}
            for one in sorted(totals, key=lambda one: (one.kind, one.axis, one.dtype))
        },
    }
