"""What is launched: one frozen description for each target. The command line is made from its fields."""

import dataclasses
import math
import re

from layers.errors import UsageError
from runners.options import option

COORDINATOR_PORT = 8482  # where process 0 listens in a pod; JAX's own on TPU VMs


def require_positive(job: "Job", *names: str) -> None:
    """Raises a UsageError where one of these fields is a number below 1."""
    for name in names:
        value = getattr(job, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name}={value} must be at least 1.")


def require_dns_name(name: str) -> None:
    """Raises a UsageError for what cannot be part of a host's name."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise UsageError(
            f"--name={name} becomes part of host names: small letters, digits and hyphens, a letter first, 40 at most."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What every target takes."""

    flags: tuple[str, ...] = ()  # the runner's
    name: str = option("what the launch is called; by default the workdir's last part", default="")
    folder: str = option("where scripts and logs are written; by default launches/NAME", default="")
    dry_run: bool = option("print and write everything, run nothing", default=False)

    def __post_init__(self):
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise UsageError(f"'{self.name}' is no name: give --name of letters, digits, '.', '_' and '-'.")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            said = value if isinstance(value, tuple) else (value,)
            if field.name != "flags" and any(isinstance(one, str) and not one.isprintable() for one in said):
                raise UsageError(f"--{field.name} holds a character that cannot be printed: it must be one line.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(Job):
    """Processes on this machine. Process 0 writes here, the others to files."""

    num_processes: int = option("how many processes")
    host_devices: int | None = option("virtual CPU devices of each process", default=None)

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "num_processes", "host_devices")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm(Job):
    """A batch job of Slurm, one srun inside."""

    nodes: int = option("how many machines")
    tasks_per_node: int | None = option("processes on each; by default one per GPU, or one", default=None)
    gpus_per_node: int | None = option("GPUs on each machine", default=None)
    cpus_per_task: int | None = option("CPU cores of each process", default=None)
    time: str = option("time limit, as Slurm writes it: 24:00:00", default="")
    partition: str = option("the partition", default="")
    account: str = option("who pays", default="")
    notice: int = option("seconds before the time limit at which runs are told to save; 300", default=300)
    activate: str = option("a line of shell that makes `python` the right one; by default this Python", default="")
    sbatch: tuple[str, ...] = option("any other option of sbatch: --sbatch=--constraint=a100; repeatable", default=())

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "nodes", "tasks_per_node", "gpus_per_node", "cpus_per_task", "notice")
        if self.gpus_per_node and self.tasks != self.gpus_per_node:
            raise UsageError(
                f"--tasks_per_node={self.tasks} does not fit --gpus_per_node={self.gpus_per_node}: under Slurm each "
                "process takes one GPU, so leave it out."
            )
        for one in self.sbatch:
            if not one.startswith("-"):
                raise UsageError(f"--sbatch={one} is no option of sbatch: write --sbatch=--constraint=a100.")

    @property
    def tasks(self) -> int:
        """Processes on each machine."""
        return self.tasks_per_node or self.gpus_per_node or 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mpirun(Job):
    """Open MPI's mpirun, in the foreground."""

    num_processes: int = option("how many processes")
    hosts: str = option("machines and their slots: a:2,b:2", default="")
    hostfile: str = option("a file that lists them instead", default="")
    processes_per_host: int | None = option("so many on each machine, whatever its slots", default=None)
    export: tuple[str, ...] = option("an environment variable that the processes shall have; repeatable", default=())
    grace: int = option("seconds between SIGTERM and SIGKILL; 60", default=60)
    activate: str = option("a line of shell that makes `python` the right one; by default this Python", default="")

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "num_processes", "processes_per_host", "grace")
        if self.hosts and self.hostfile:
            raise UsageError("--hosts and --hostfile both name the machines: give one of them.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSet(Job):
    """A JobSet of Kubernetes: one pod for each host, which run and restart together."""

    image: str = option("the container image, with this package in it")
    num_hosts: int = option("how many pods, one process each")
    tpu_type: str = option("GKE's name of the TPU: tpu-v5-lite-podslice", default="")
    topology: str = option("the slice's shape: 4x4", default="")
    gpus: int | None = option("GPUs of each pod", default=None)
    volume: tuple[str, ...] = option("a claim that all pods mount: CLAIM:/path; repeatable", default=())
    namespace: str = option("the namespace; by default kubectl's own", default="")
    service_account: str = option("the pods' account, which may read and write buckets", default="default")
    max_restarts: int = option("restarts after failures; those after lost nodes are not counted; 10", default=10)
    grace: int = option("seconds between SIGTERM and SIGKILL; 300", default=300)

    def __post_init__(self):
        super().__post_init__()
        require_dns_name(self.name)
        require_positive(self, "num_hosts", "gpus", "grace")
        if bool(self.tpu_type) != bool(self.topology):
            raise UsageError("--tpu_type and --topology name a slice together: give both, or none.")
        if self.tpu_type and self.gpus:
            raise UsageError("--tpu_type and --gpus exclude each other: a pod has TPUs or GPUs.")
        if self.topology and (not re.fullmatch(r"\d+(x\d+){1,2}", self.topology) or self.chips % self.num_hosts):
            raise UsageError(f"--topology={self.topology} does not give {self.num_hosts} hosts as many chips each.")
        for one in self.volume:
            if not re.fullmatch(r"[a-z0-9.-]+:/.+", one):
                raise UsageError(f"--volume={one} must be CLAIM:/path.")

    @property
    def chips(self) -> int:
        """TPU chips of the slice."""
        return math.prod(int(size) for size in self.topology.split("x"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tpu(Job):
    """A Cloud TPU slice by its name."""

    zone: str = option("the Cloud zone")
    project: str = option("the Cloud project; by default gcloud's own", default="")

    def __post_init__(self):
        super().__post_init__()
        require_dns_name(self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewTpu(Tpu):
    """A slice that is to be."""

    accelerator_type: str = option("type and size: v4-32")
    runtime_version: str = option("the machines' software; tpu-ubuntu2204-base", default="tpu-ubuntu2204-base")
    spot: bool = option("cheap, and taken away at any time", default=False)
    reserved: bool = option("from a reservation", default=False)

    def __post_init__(self):
        super().__post_init__()
        if self.spot and self.reserved:
            raise UsageError("--spot and --reserved exclude each other: give one of them.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueuedTpu(NewTpu):
    """A slice that is waited for."""

    valid_until_duration: str = option("give up after so long: 6h", default="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installation(Tpu):
    """What the slice's hosts get."""

    source: str = option("a git checkout, whose last commit is installed; this folder", default=".")
    extras: str = option("extras of the package: tpu,hf", default="tpu")
    python: str = option("the Python that uv fetches; 3.12", default="3.12")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop(Tpu):
    """An end to the run on a slice."""

    grace: int = option("seconds between SIGTERM and SIGKILL; 300", default=300)

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "grace")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch(Tpu):
    """A look at the run on a slice."""

    worker: str = option("the host, or all; 0, which has process 0", default="0")
