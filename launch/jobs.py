"""Jobs: one frozen dataclass for each target, whose fields are the command-line options."""

import dataclasses
import math
import re

from launch.fewer_machines import hosts_of, slots_of
from layers.errors import UsageError
from runners.options import option

COORDINATOR_PORT = 8482  # the port of process 0 in a pod; the same as JAX's on TPU VMs


def require_positive(job: "Job", *names: str) -> None:
    """Raises a UsageError if one of these fields is a number below 1."""
    for name in names:
        value = getattr(job, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1 (got {value}).")


def require_dns_name(name: str) -> None:
    """Raises a UsageError unless `name` can be part of a host name."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise UsageError(
            f"--name must be at most 40 lowercase letters, digits and inner hyphens, a letter first, because it "
            f"becomes part of host names (got {name})."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Options of every target."""

    flags: tuple[str, ...] = ()  # the runner's
    workdir: str | None = None  # of the runner's flags
    arrays: tuple[int, ...] = ()  # runs of each rung of a study or ladder, for targets with arrays; empty: one job
    name: str = option("the name of the launch; by default the last part of the workdir", default="")
    folder: str = option("the folder of scripts and logs; by default launches/NAME", default="")
    dry_run: bool = option("write and print everything without running it", default=False)

    def __post_init__(self):
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise UsageError(
                f"--name must consist of letters, digits, '.', '_' and '-', without '.' or '-' at its start (got "
                f"{self.name!r})."
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else (value,)
            if field.name != "flags" and any(isinstance(one, str) and not one.isprintable() for one in values):
                raise UsageError(f"--{field.name} must be one line of printable characters (got {value!r}).")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised(Job):
    """Options of the targets that can start a run again."""

    restarts: int = option("times that a run is started again after a failure; 0", default=0)

    def __post_init__(self):
        super().__post_init__()
        if self.restarts < 0:
            raise UsageError(f"--restarts must be at least 0 (got {self.restarts}).")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shrinking(Supervised):
    """Options of the targets that can continue with fewer processes."""

    num_processes: int = option("number of processes")
    fewest: int | None = option("processes to continue with at least, if some fail again; by default all", default=None)

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "num_processes", "fewest")
        if self.fewest is not None and self.fewest > self.num_processes:
            raise UsageError(f"--fewest must be at most --num_processes = {self.num_processes} (got {self.fewest}).")
        if self.fewest is not None and not self.restarts:
            raise UsageError("--fewest needs --restarts. Add --restarts=N.")
        if self.fewest is not None and self.workdir is None:
            raise UsageError("--fewest needs a run folder. Add --workdir=FOLDER to the runner's flags.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(Shrinking):
    """Processes on this machine. Process 0 writes to the terminal, the others to files."""

    host_devices: int | None = option("virtual CPU devices of each process", default=None)

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "host_devices")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm(Job):
    """A batch job of Slurm with one srun; for a study or a ladder an array of jobs with one run each."""

    nodes: int = option("number of machines")
    tasks_per_node: int | None = option("processes on each machine; by default one per GPU, or one", default=None)
    gpus_per_node: int | None = option("GPUs on each machine", default=None)
    cpus_per_task: int | None = option("CPU cores of each process", default=None)
    time: str = option("time limit, as Slurm writes it: 24:00:00", default="")
    partition: str = option("the partition", default="")
    account: str = option("the account that is charged", default="")
    at_once: int | None = option("tasks of an array of jobs that run at a time; by default all", default=None)
    notice: int = option("seconds before the time limit at which runs get SIGTERM and save; 300", default=300)
    activate: str = option("a shell line that activates the right `python`; by default this Python", default="")
    sbatch: tuple[str, ...] = option("any other option of sbatch: --sbatch=--constraint=a100; repeatable", default=())

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "nodes", "tasks_per_node", "gpus_per_node", "cpus_per_task", "at_once", "notice")
        if self.gpus_per_node and self.tasks != self.gpus_per_node:
            raise UsageError(
                f"--tasks_per_node must equal --gpus_per_node = {self.gpus_per_node}, because under Slurm each process "
                f"takes one GPU (got {self.tasks}). Remove it."
            )
        for one in self.sbatch:
            if not one.startswith("-"):
                raise UsageError(f"--sbatch must be an option of sbatch, like --sbatch=--constraint=a100 (got {one}).")

    @property
    def tasks(self) -> int:
        """The number of processes on each machine."""
        return self.tasks_per_node or self.gpus_per_node or 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mpirun(Shrinking):
    """Open MPI's mpirun, in the foreground."""

    hosts: str = option("machines and their slots: a:2,b:2", default="")
    hostfile: str = option("a file that lists the machines, instead of --hosts", default="")
    processes_per_host: int | None = option("processes on each machine, instead of its slots", default=None)
    export: tuple[str, ...] = option("an environment variable to pass to the processes; repeatable", default=())
    grace: int = option("seconds between SIGTERM and SIGKILL; 60", default=60)
    activate: str = option("a shell line that activates the right `python`; by default this Python", default="")

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "processes_per_host", "grace")
        if self.hosts and self.hostfile:
            raise UsageError("--hosts and --hostfile exclude each other. Remove one of them.")
        if self.fewest is not None:
            self._require_equal_machines()

    def _require_equal_machines(self) -> None:
        """Raises a UsageError unless --hosts has several machines with as many processes each, which are all used."""
        if not self.hosts:
            raise UsageError("--fewest needs the names of the machines. Give --hosts=A:N,B:N.")
        slots = slots_of(self.hosts, self.processes_per_host)
        if len(slots) < 2 or len(set(slots.values())) > 1 or sum(slots.values()) != self.num_processes:
            raise UsageError(
                f"--fewest needs several machines with the same number of processes each, together --num_processes = "
                f"{self.num_processes} (got {hosts_of(slots)}). Change --hosts."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSet(Job):
    """A JobSet of Kubernetes: one pod per host; all pods start and restart together."""

    image: str = option("the container image, which contains this package")
    num_hosts: int = option("number of pods, with one process each")
    tpu_type: str = option("GKE's name of the TPU type: tpu-v5-lite-podslice", default="")
    topology: str = option("the slice's shape: 4x4", default="")
    gpus: int | None = option("GPUs of each pod", default=None)
    volume: tuple[str, ...] = option("a volume claim that all pods mount: CLAIM:/path; repeatable", default=())
    namespace: str = option("the namespace; by default that of kubectl", default="")
    service_account: str = option("the pods' account, with access to buckets", default="default")
    max_restarts: int = option("restarts after failures, without those after lost nodes; 10", default=10)
    grace: int = option("seconds between SIGTERM and SIGKILL; 300", default=300)

    def __post_init__(self):
        super().__post_init__()
        require_dns_name(self.name)
        require_positive(self, "num_hosts", "gpus", "grace")
        if bool(self.tpu_type) != bool(self.topology):
            raise UsageError("--tpu_type and --topology must be given together. Give both, or remove both.")
        if self.tpu_type and self.gpus:
            raise UsageError("--tpu_type and --gpus exclude each other. Remove one of them.")
        if self.topology and (not re.fullmatch(r"\d+(x\d+){1,2}", self.topology) or self.chips % self.num_hosts):
            raise UsageError(
                f"--topology must be like 4x4, with a number of chips that --num_hosts = {self.num_hosts} divides (got "
                f"{self.topology})."
            )
        for one in self.volume:
            if not re.fullmatch(r"[a-z0-9.-]+:/.+", one):
                raise UsageError(f"--volume must be CLAIM:/path (got {one}).")

    @property
    def chips(self) -> int:
        """The number of TPU chips of the slice."""
        return math.prod(int(size) for size in self.topology.split("x"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tpu(Job):
    """An existing slice of Cloud TPUs, by name."""

    zone: str = option("the Cloud zone")
    project: str = option("the Cloud project; by default that of gcloud", default="")

    def __post_init__(self):
        super().__post_init__()
        require_dns_name(self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuRun(Tpu, Supervised):
    """A run on all hosts of a slice, in tmux."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewTpu(Tpu):
    """A slice to create."""

    accelerator_type: str = option("type and size: v4-32")
    runtime_version: str = option("software version of the hosts; tpu-ubuntu2204-base", default="tpu-ubuntu2204-base")
    spot: bool = option("use spot capacity, which is cheap but may be preempted at any time", default=False)
    reserved: bool = option("use a reservation", default=False)

    def __post_init__(self):
        super().__post_init__()
        if self.spot and self.reserved:
            raise UsageError("--spot and --reserved exclude each other. Remove one of them.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueuedTpu(NewTpu):
    """A slice requested through a queue."""

    valid_until_duration: str = option("time after which the request expires: 6h", default="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installation(Tpu):
    """The installation of the package on the hosts of a slice."""

    source: str = option("a git checkout, whose last commit is installed; by default this folder", default=".")
    extras: str = option("extras of the package: tpu,hf", default="tpu")
    python: str = option("the Python that uv fetches; 3.12", default="3.12")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop(Tpu):
    """A request to stop the run on a slice."""

    grace: int = option("seconds between SIGTERM and SIGKILL; 300", default=300)

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "grace")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch(Tpu):
    """A view of the run on a slice."""

    worker: str = option("the index of the host, or all; 0, the host of process 0", default="0")
