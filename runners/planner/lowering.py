"""Lowering of complete updates for TPUs and GPUs, without devices, their compilers, or arrays."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import jax
from jax._src.custom_partitioning import custom_partitioning_p
from jax._src.interpreters import mlir
from jax.extend import core
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding

from registry.checks import Built
from registry.experiment import Experiment, cls_key
from registry.user_code import clear_errors
from runners.abstract_arrays import AbstractArrays
from runners.compiled_functions import CompiledFunctions
from runners.machine.chips import CHIPS
from runners.planner.topologies import planned_cudnn

# By JAX's name of a platform for lowering: the name of its devices' platform, and the chip that is lowered for.
TARGETS = {"tpu": ("tpu", "v5p"), "cuda": ("gpu", "h100")}


def check_lowering(experiment: Experiment, built: Built, mesh: Mapping[str, int] | None = None) -> None:
    """Lowers the update of a valid experiment for TPUs and for NVIDIA GPUs.

    Lowering ends before compilation: it finds operations and kernels that a platform does not have, and placements
    that do not fit.

    Args:
      experiment: the experiment.
      built: what `check` returned for it.
      mesh: its mesh; by default as declared.
    Raises:
      UsageError: its update cannot be traced or lowered; the message names the platform.
    """
    cls = type(experiment)
    for platform in TARGETS:
        with clear_errors(f"The update of {cls_key(cls)} cannot be lowered for {platform}", cls.__module__):
            lower(experiment, built, platform, mesh)


def lower(
    experiment: Experiment, built: Built, platform: str, mesh: Mapping[str, int] | None = None
) -> jax.stages.Lowered:
    """Returns the update of a valid experiment, lowered for a platform in TARGETS; arguments as in `check_lowering`."""
    devices, chip = TARGETS[platform]
    shape = experiment.mesh_shape() if mesh is None else mesh
    device = AbstractDevice(CHIPS[chip].kinds[0], None, devices)
    kinds = (AxisType.Auto,) * len(shape)
    placed = AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=kinds, abstract_device=device)
    sharding = NamedSharding(placed, experiment.layout.activations["tokens_bs"])
    abstract = AbstractArrays(built.task, built.train.input, sharding, shape)
    functions = CompiledFunctions(built.task, built.train, jax.random.key(experiment.SEED), abstract)
    with jax.sharding.use_abstract_mesh(placed), planned_cudnn(CHIPS[chip]), _without_devices() as parameters:
        traced = functions.trace_step(abstract.batch, abstract.seed)
        return traced.lower(lowering_platforms=(platform,), _private_parameters=parameters)


@contextlib.contextmanager
def _without_devices() -> Iterator[mlir.LoweringParameters]:
    """Lets JAX lower kernels that state their own partitioning (cuDNN attention) without devices, inside the context.

    JAX asks for the devices to partition such a kernel while the program is compiled, which does not happen here. Each
    is lowered as if one device computed all of it.
    """
    inline = lambda ctx, *values, call, **_: mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(
        ctx, *values
    )
    rules: Any = ((custom_partitioning_p, inline),)
    with mock.patch("jax._src.dispatch.prim_requires_devices_during_lowering", set()):
        yield mlir.LoweringParameters(override_lowering_rules=rules)
