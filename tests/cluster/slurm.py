"""A Slurm of our own on this machine: munged, slurmctld and two slurmd, seen by nobody else.

    python -m tests.cluster.slurm COMMAND...

runs a command in namespaces of its own: node names are put into /etc/hosts there alone, and what runs in them
ends with the command. A Slurm that the machine has is never asked: ours has a configuration of its own.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

INSIDE = "VORTARO_CLUSTER_NAMESPACE"  # set in the namespaces
HOST = "vortaro"  # what the machine is called meanwhile
NODES = ("vortaro1", "vortaro2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "unshare", "mount")
READY_SECONDS = 60.0
KILL_WAIT = 20  # seconds between SIGTERM and SIGKILL
CONF = """
ClusterName=vortaro
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
FirstJobId={first_job}
JobRequeue=1
KillWait={kill_wait}
ReturnToService=2
NodeName={nodes[0]} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName={nodes[1]} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=main Nodes=ALL Default=YES
"""


def missing() -> str | None:
    """What keeps a Slurm of our own from starting here, in one sentence; None if nothing does."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"{absent[0]} is not installed: on Debian, apt-get install slurm-wlm munge makes it so."
    if os.geteuid() != 0:
        return "Slurm's daemons need root. Run make test-cluster as root, for example in a container."
    if INSIDE not in os.environ:
        return "Namespaces are missing: make test-cluster makes them, where `unshare --mount --uts --pid` is allowed."
    return None


def _program(name: str) -> str | None:
    """Where a program is, daemons included; None if it is not."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(folder: Path, program: str, *arguments: str) -> subprocess.Popen:
    """Starts a daemon in the foreground, with its output in FOLDER/PROGRAM.out."""
    with open(folder / f"{program}.out", "ab") as out:
        return subprocess.Popen(
            [_program(program), *arguments], env=environment(folder / "slurm.conf"), stdout=out, stderr=out
        )


def environment(conf: Path) -> dict[str, str]:
    """This process's environment, with our slurm.conf and nothing of a cluster that it may itself run in."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMIX_"))}
    return {**ours, "SLURM_CONF": str(conf)}


def _wait_ready(folder: Path, daemons: list[subprocess.Popen]) -> None:
    """Waits until every node is idle; on a timeout raises a RuntimeError with the end of the logs."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        state = subprocess.run(
            ["sinfo", "--noheader", "--format=%T %D"],
            capture_output=True,
            text=True,
            env=environment(folder / "slurm.conf"),
        )
        if state.stdout.split() == ["idle", str(len(NODES))]:
            return
        if any(daemon.poll() is not None for daemon in daemons):
            break
        time.sleep(0.2)
    logs = [
        line
        for log in sorted([*folder.glob("*.log"), *folder.glob("*.out")])
        for line in [f"{log.name}:", *log.read_text(errors="replace").splitlines()[-5:]]
    ]
    raise RuntimeError("\n".join(["Slurm did not start.", *logs]))


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """Runs a Slurm of two nodes with all its files in folder; commands find it by `environment(slurm.conf)`."""
    (folder / "state").mkdir(parents=True)
    key, hosts, conf = folder / "munge.key", folder / "hosts", folder / "slurm.conf"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    hosts.write_text(Path("/etc/hosts").read_text() + "".join(f"127.0.0.1 {node}\n" for node in (HOST, *NODES)))
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    socket.sethostname(HOST)
    first_job = random.randrange(1, 4000)  # JAX takes a port by the job's number
    conf.write_text(
        CONF.format(folder=folder, ports=_free_ports(3), nodes=NODES, first_job=first_job, kill_wait=KILL_WAIT)
    )
    munge = [
        f"--{name}={folder / f'munge.{kind}'}"
        for name, kind in (
            ("socket", "socket"),
            ("key-file", "key"),
            ("log-file", "log"),
            ("pid-file", "pid"),
            ("seed-file", "seed"),
        )
    ]
    daemons = []
    try:
        daemons.append(_start(folder, "munged", "--foreground", "--force", *munge))
        deadline = time.monotonic() + READY_SECONDS
        while not (folder / "munge.socket").exists() and daemons[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        daemons.append(_start(folder, "slurmctld", "-D"))
        daemons.extend(_start(folder, "slurmd", "-D", "-N", node) for node in NODES)
        _wait_ready(folder, daemons)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        subprocess.run(["umount", "/etc/hosts"], check=False)


def main(command: list[str]) -> None:
    """Runs a command in namespaces of its own where they can be had, and as it is where they cannot."""
    unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if _program("unshare") and subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
        os.execvpe("unshare", [*unshare, *command], {**os.environ, INSIDE: "1"})
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
