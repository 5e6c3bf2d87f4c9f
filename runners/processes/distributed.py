"""Joining the other processes of a run, which are given by flags or detected from the launcher's environment.

Uses JAX's multi-controller runtime (`jax.distributed`): every process runs the same program on its own devices.
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
from runners.processes.coordination import ProcessGroup, end
from runners.processes.heartbeat import Heartbeat, on_abort

# Environment variables with the number of processes and the index of this one, set by Open MPI, Slurm and Kubernetes.
COUNTS = ("JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
INDICES = ("JAX_PROCESS_ID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
ADDRESS = "JAX_COORDINATOR_ADDRESS"


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of this process in its run; JAX detects the fields that are None."""

    coordinator: str | None = None  # HOST:PORT at which process 0 listens
    count: int | None = None
    index: int | None = None


def find_position(options: argparse.Namespace, environment: Mapping[str, str]) -> Position | None:
    """Returns the position of this process in its run; None if it runs alone.

    Raises:
      UsageError: the position is incomplete or contradicts itself.
    """
    given = (options.coordinator, options.num_processes, options.process_id)
    coordinator = options.coordinator or environment.get(ADDRESS)
    count = _first(options.num_processes, COUNTS, environment)
    index = _first(options.process_id, INDICES, environment)
    if given == (None, None, None) and count == 1:
        return None
    if coordinator is not None or given != (None, None, None):
        return _checked(coordinator, count, index)
    if count is not None:  # JAX finds the coordinator of Slurm and Open MPI processes if these variables are set
        if "SLURM_STEP_NODELIST" in environment or "OMPI_MCA_orte_hnp_uri" in environment:
            return Position()
        raise UsageError(
            f"The address of process 0 is unknown (got {count} processes). Give all of them the same "
            f"--coordinator=HOST:PORT."
        )
    return Position() if _on_cloud_tpu(environment) else None


def _first(given: int | None, names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    if given is not None:
        return given
    for name in names:
        if name in environment:
            try:
                return int(environment[name])
            except ValueError as error:
                raise UsageError(
                    f"The environment variable {name} must be a number (got {environment[name]})."
                ) from error
    return None


def _checked(coordinator: str | None, count: int | None, index: int | None) -> Position:
    values = {"--coordinator": coordinator, "--num_processes": count, "--process_id": index}
    missing = [flag for flag, value in values.items() if value is None]
    if coordinator is None or count is None or index is None:
        raise UsageError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Give --coordinator, "
            f"--num_processes and --process_id together."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--coordinator must be HOST:PORT, like localhost:1234 (got {coordinator}).")
    if count < 1:
        raise UsageError(f"--num_processes must be at least 1 (got {count}).")
    if not 0 <= index < count:
        raise UsageError(f"--process_id must be 0 to {count - 1} with --num_processes={count} (got {index}).")
    return Position(coordinator, count, index)


def _on_cloud_tpu(environment: Mapping[str, str]) -> bool:
    """Returns whether this machine has TPU chips that JAX will use; JAX then queries the slice for its hosts."""
    if (environment.get("JAX_PLATFORMS") or "tpu").split(",")[0] != "tpu" or importlib.util.find_spec("libtpu") is None:
        return False
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


@contextlib.contextmanager
def joined(
    options: argparse.Namespace, *, several_processes: bool, saves_on_sigterm: bool = False
) -> Iterator[ProcessGroup]:
    """Joins the other processes of the run inside the context; does nothing for a single process.

    An error inside is sent to the others, which stop too. If there are several processes, an error exits this one
    immediately, because an orderly shutdown would wait for processes that may never arrive.

    Args:
      options: the flags by which processes find each other.
      several_processes: join the processes that the environment names; otherwise only those that flags name.
      saves_on_sigterm: leave SIGTERM to JAX, which makes all processes save the same step.
    Raises:
      UsageError: the position of this process is incomplete or contradicts itself.
      VortaroError: the others did not connect in time.
    """
    has_flags = (options.coordinator, options.num_processes, options.process_id) != (None, None, None)
    joins = (has_flags or several_processes) and not jax.distributed.is_initialized()
    position = find_position(options, os.environ) if joins else None
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if position is None and tasks != "1" and "SLURM_STEP_NODELIST" not in os.environ:
        print(f"Only one process runs in a Slurm job of {tasks} tasks. Put srun before the command to use all tasks.")
    if position is None:
        yield ProcessGroup()
        return
    with _connected(position, options.join_timeout, options.peer_timeout):
        processes = connected_group()
        if not (saves_on_sigterm and processes.several):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # JAX handles it only if several processes save one step
        if not processes.primary:
            _silence()
        heartbeat = Heartbeat(processes, options.peer_timeout)
        heartbeat.start()
        try:
            _require_one_runtime()
            yield processes
        except BaseException as error:
            heartbeat.fail(error)
        heartbeat.close()


def connected_group() -> ProcessGroup:
    """Returns the group of a process after `jax.distributed.initialize`."""
    state = distributed.global_state
    return ProcessGroup(state.client, state.process_id, state.num_processes)


@contextlib.contextmanager
def _connected(position: Position, patience: int, silence: int) -> Iterator[None]:
    on_abort(lambda: end(f"{_meeting(position)} within --join_timeout={patience} seconds."))
    try:
        jax.distributed.initialize(
            position.coordinator,
            position.count,
            position.index,
            initialization_timeout=patience,
            heartbeat_timeout_seconds=silence + 60,  # ours come first: JAX aborts a process with a C++ stack
            shutdown_timeout_seconds=3600,  # process 0 may have much to upload at the end
        )
    except (RuntimeError, ValueError) as error:
        raise VortaroError(f"{_meeting(position)}: {first_line(error)}.") from error
    yield
    jax.distributed.shutdown()


def _require_one_runtime() -> None:
    """Initializes devices; raises a VortaroError if JAX does not join those of all processes (on CPUs by default)."""
    met, used = distributed.global_state.num_processes, jax.process_count()
    if met != used:
        raise VortaroError(
            f"{met} processes are connected, but JAX uses the {jax.default_backend()} devices of each separately. Set "
            f"JAX_PLATFORMS=cpu to train on CPUs together, or find out why JAX finds no accelerator."
        )


def _meeting(position: Position) -> str:
    where = "the processes of this run" if position.coordinator is None else f"the others at {position.coordinator}"
    count = "" if position.count is None else f" ({position.count} processes in all)"
    return f"This process could not connect to {where}{count}"


def _silence() -> None:
    """Redirects stdout of this process, native output included, to the null device; stderr stays."""
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
