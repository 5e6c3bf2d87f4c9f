"""The machine to plan for: a chip and its number of devices, attached or not."""

import dataclasses
import math
from typing import Any

import jax

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment
from runners.machine.chips import CHIPS, Chip
from runners.machine.virtual_devices import make_virtual_devices
from runners.planner.topologies import parse_topology, topology_devices

SMOKE_DEVICES = 8  # virtual devices of a --smoke experiment without --host_devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan is compiled for and compared with."""

    chip: Chip | None = None  # whose capacity and speeds apply; None: unknown
    topology: str | None = None  # a TPU slice or GPUs, for which their own compiler compiles; None: virtual CPU devices
    virtual_devices: int | None = None  # None: the size of the mesh
    memory_fraction: float | None = None  # share of a GPU's memory that a process can use; None: JAX's default

    @classmethod
    def named(
        cls,
        *,
        topology: str | None = None,
        chip: str | None = None,
        virtual_devices: int | None = None,
        memory_fraction: float | None = None,
    ) -> "Machine":
        """Returns the machine that flags describe; arguments as the fields.

        Raises:
          UsageError: the chip is unknown, or is not the topology's, or a share of its memory is invalid.
        """
        if chip is not None and chip not in CHIPS:
            raise UsageError(f"Unknown chip '{chip}'. {did_you_mean(chip, CHIPS)}")
        found = None if chip is None else CHIPS[chip]
        if topology is not None:
            found = parse_topology(topology)[0]
            if chip not in (None, found.name):
                raise UsageError(f"--topology={topology} implies its own chip (got --chip={chip}). Remove --chip.")
            if virtual_devices is not None:
                raise UsageError(f"--topology={topology} implies its own devices. Remove --host_devices.")
        if memory_fraction is not None and (found is None or found.gpu is None):
            raise UsageError(
                f"--memory_fraction={memory_fraction} needs a GPU. Set --topology=h100:1x8 or --chip=h100, or remove "
                "it."
            )
        if memory_fraction is not None and not 0 < memory_fraction <= 1:
            raise UsageError(
                f"--memory_fraction must be above 0 and at most 1 (got {memory_fraction}). JAX's default is 0.75."
            )
        return cls(chip=found, topology=topology, virtual_devices=virtual_devices, memory_fraction=memory_fraction)

    @property
    def target(self) -> Chip | None:
        """The chip whose own compiler compiles; None: the CPU's."""
        return None if self.topology is None else self.chip

    @property
    def granule(self) -> str:
        """What the devices inside are of: slices of TPUs, or hosts; exchanges between them cross the network."""
        return "hosts" if self.chip is None or self.chip.gpu else "slices"

    @property
    def capacity(self) -> int | None:
        """Bytes that a process can use of a device's memory; None if no chip is known."""
        return None if self.chip is None else self.chip.capacity(self.memory_fraction)

    def placed(self, experiment: Experiment, devices: int) -> Experiment:
        """Returns the experiment with the mesh that MESHES has for as many devices of the chip; itself without one.

        Virtual CPU devices have no hosts but those of DCN_MESH_SHAPE.
        """
        if self.chip is None or self.topology is not None:  # the session asks the devices of a topology
            return experiment
        return experiment.on(self.chip.name, devices, math.prod(experiment.DCN_MESH_SHAPE or (1,)))

    def devices(self, experiment: Experiment) -> list[Any]:
        """Returns the devices to compile for: the topology's, or virtual ones on this machine's CPU.

        Raises:
          UsageError: the topology is not supported, or JAX has started with fewer devices.
        """
        if self.topology is not None:
            make_virtual_devices(1)  # JAX's own small computations run here, so no accelerator of this machine is used
            return topology_devices(self.topology)
        count = self.virtual_devices or (SMOKE_DEVICES if experiment.smoke else experiment.num_devices)
        make_virtual_devices(count)
        if len(jax.devices()) < count:
            raise UsageError(
                f"The plan needs {count} devices, but JAX runs with {len(jax.devices())} in this process. Start a new "
                "one."
            )
        return jax.devices()[:count]
