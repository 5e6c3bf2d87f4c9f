"""Joining the other processes of a run: who they are is said by flags, or found out from what started this one.

JAX's multi-controller runtime does the work (`jax.distributed`): every process runs one program on its own devices.
"""

import argparse
import contextlib
import dataclasses
import glob
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Mapping

import jax
from jax._src import distributed  # its key-value store has no public name; orbax takes it from here too

from layers.errors import UsageError, VortaroError, first_line
from runners.processes.coordination import Peers, end, peers, use
from runners.processes.heartbeat import Vigil, on_abort

# What an Open MPI, a Slurm step and Kubernetes say to each process: how many there are, and which one it is.
COUNTS = ("JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
INDICES = ("JAX_PROCESS_ID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
ADDRESS = "JAX_COORDINATOR_ADDRESS"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process stands; what is None is found out by JAX."""

    coordinator: str | None = None  # HOST:PORT at which process 0 listens
    count: int | None = None
    index: int | None = None


def find_place(options: argparse.Namespace, environment: Mapping[str, str]) -> Place | None:
    """This process's place among others; None where it is alone.

    Raises:
      UsageError: only some of what is needed is said, or it contradicts itself.
    """
    given = (options.coordinator, options.num_processes, options.process_id)
    coordinator = options.coordinator or environment.get(ADDRESS)
    count = _first(options.num_processes, COUNTS, environment)
    index = _first(options.process_id, INDICES, environment)
    if given == (None, None, None) and count == 1:
        return None
    if coordinator is not None or given != (None, None, None):
        return _checked(coordinator, count, index)
    if count is not None:  # JAX knows the coordinator of Slurm's and Open MPI's processes, if they say enough
        if "SLURM_STEP_NODELIST" in environment or "OMPI_MCA_orte_hnp_uri" in environment:
            return Place()
        raise UsageError(
            f"There are {count} processes, and nothing says where process 0 is: give --coordinator=HOST:PORT, the same "
            f"for all of them."
        )
    return Place() if _on_cloud_tpu(environment) else None


def _first(given: int | None, names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    if given is not None:
        return given
    for name in names:
        if name in environment:
            try:
                return int(environment[name])
            except ValueError as error:
                raise UsageError(f"The environment says {name}={environment[name]}, which is no number.") from error
    return None


def _checked(coordinator: str | None, count: int | None, index: int | None) -> Place:
    said = {"--coordinator": coordinator, "--num_processes": count, "--process_id": index}
    missing = [flag for flag, value in said.items() if value is None]
    if coordinator is None or count is None or index is None:
        raise UsageError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: --coordinator, --num_processes "
            f"and --process_id say together where a process stands."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--coordinator={coordinator} must be HOST:PORT, like localhost:1234.")
    if count < 1:
        raise UsageError(f"--num_processes={count} must be at least 1.")
    if not 0 <= index < count:
        raise UsageError(f"--process_id={index} must be one of 0 to {count - 1}, as there are {count} processes.")
    return Place(coordinator, count, index)


def _on_cloud_tpu(environment: Mapping[str, str]) -> bool:
    """Whether TPU chips are in this machine, and JAX will use them: then JAX asks the slice who its hosts are."""
    if (environment.get("JAX_PLATFORMS") or "tpu").split(",")[0] != "tpu" or importlib.util.find_spec("libtpu") is None:
        return False
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


@contextlib.contextmanager
def joined(options: argparse.Namespace, *, several_processes: bool, saves_on_sigterm: bool = False) -> Iterator[Peers]:
    """Inside, this process is one of its run's; alone, nothing happens.

    What fails inside is said to the others, which stop with it. One of several processes ends here, whatever happens:
    an orderly end would wait for others that may never come.

    Args:
      options: the flags that say how processes find each other.
      several_processes: join the others that the environment names; otherwise only those that flags name.
      saves_on_sigterm: leave SIGTERM to JAX, which has all processes save one step.
    Raises:
      UsageError: the place of this process is not said clearly.
      VortaroError: the others did not come.
    """
    told = (options.coordinator, options.num_processes, options.process_id) != (None, None, None)
    joins = (told or several_processes) and not jax.distributed.is_initialized()
    place = find_place(options, os.environ) if joins else None
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if place is None and tasks != "1" and "SLURM_STEP_NODELIST" not in os.environ:
        print(f"This process is alone, in a Slurm job of {tasks} tasks: put srun in front of the command to use all.")
    if place is None:
        yield peers()
        return
    with _connected(place, options.join_timeout, options.peer_timeout):
        state = distributed.global_state
        others = Peers(state.client, state.process_id, state.num_processes)
        if not (saves_on_sigterm and others.several):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # JAX keeps it, for several who save one step
        with use(others):
            if not others.primary:
                _silence()
            vigil = Vigil(others, options.peer_timeout)
            vigil.start()
            try:
                _require_one_runtime()
                yield others
            except BaseException as error:
                vigil.fail(error)
            vigil.close()


@contextlib.contextmanager
def _connected(place: Place, patience: int, silence: int) -> Iterator[None]:
    on_abort(lambda: end(f"{_meeting(place)} within --join_timeout={patience} seconds."))
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            initialization_timeout=patience,
            heartbeat_timeout_seconds=silence + 60,  # JAX ends a process with a C++ stack: ours speak before
            shutdown_timeout_seconds=3600,  # process 0 may have much to upload at the end
        )
    except (RuntimeError, ValueError) as error:
        raise VortaroError(f"{_meeting(place)}: {first_line(error)}.") from error
    yield
    jax.distributed.shutdown()


def _require_one_runtime() -> None:
    """Looks for devices; raises a VortaroError where JAX uses them in each process alone, as it does on CPUs untold."""
    met, used = distributed.global_state.num_processes, jax.process_count()
    if met != used:
        raise VortaroError(
            f"{met} processes met, but JAX uses the {jax.default_backend()} devices of each alone: say "
            f"JAX_PLATFORMS=cpu to train on CPUs together, or find out why no accelerator is seen."
        )


def _meeting(place: Place) -> str:
    where = "the processes of this run" if place.coordinator is None else f"the others at {place.coordinator}"
    count = "" if place.count is None else f" ({place.count} processes in all)"
    return f"This process did not meet {where}{count}"


def _silence() -> None:
    """Sends what this process prints nowhere, native code's words too: process 0 speaks for all. Errors stay."""
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
