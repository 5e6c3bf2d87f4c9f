"""Training under a real Open MPI on this machine: what `launch mpirun` writes is what runs."""

import signal
import subprocess

import pytest

from tests.cluster.conftest import STEPS, shortened

GRACE = 10


def start(lab, name) -> subprocess.Popen:
    """Starts the script of a run, with its output in launches/NAME/1.out, 2.out, ..."""
    folder = lab.folder / "launches" / name
    print(f"$ bash launches/{name}/mpirun.sh", flush=True)
    with (folder / f"{len(list(folder.glob('*.out'))) + 1}.out").open("w") as out:
        return subprocess.Popen(
            ["bash", folder / "mpirun.sh"], cwd=lab.folder, env=lab.environment, stdout=out, stderr=out
        )


def finish(lab, name, process) -> int:
    """Waits for the script, and prints its output; returns its exit code."""
    code = process.wait(timeout=240)
    print(shortened(max((lab.folder / "launches" / name).glob("*.out")).read_text()), flush=True)
    print(f"$ echo $?\n{code}", flush=True)
    return code


def test_two_processes_have_the_losses_of_one(open_mpi, alone):
    open_mpi.render("mpirun", "mpi", "--num_processes=2")
    assert finish(open_mpi, "mpi", start(open_mpi, "mpi")) == 0
    assert open_mpi.output("mpi").count("Done: ") == 1
    assert open_mpi.losses("mpi") == pytest.approx(alone, rel=1e-6)


def test_after_sigterm_to_its_processes_the_same_script_resumes(open_mpi, alone):
    open_mpi.render("mpirun", "mpi-term", "--num_processes=2")
    process = start(open_mpi, "mpi-term")
    open_mpi.reach("mpi-term", 5)
    open_mpi.shell("pkill", "-TERM", "-P", str(process.pid))
    assert finish(open_mpi, "mpi-term", process) == 0
    at = open_mpi.steps("mpi-term")
    assert 5 <= at < STEPS
    assert f"SIGTERM: saved step {at} in runs/mpi-term" in open_mpi.output("mpi-term")
    assert open_mpi.saved("mpi-term")[-1] == at
    assert finish(open_mpi, "mpi-term", start(open_mpi, "mpi-term")) == 0
    assert f"Resumed at step {at} from" in open_mpi.output("mpi-term")
    assert open_mpi.losses("mpi-term") == pytest.approx(alone, rel=1e-6)


def test_sigterm_to_mpirun_leaves_time_to_save(open_mpi):
    # Open MPI 4 hands SIGTERM on when the time of grace has passed once, and ends when it has passed twice.
    endless = {"NUM_STEPS": 100_000, "SAVE_EVERY": 100_000}
    open_mpi.render("mpirun", "mpi-grace", "--num_processes=2", f"--grace={GRACE}", **endless)
    process = start(open_mpi, "mpi-grace")
    open_mpi.reach("mpi-grace", 5)
    print("$ kill -TERM %1", flush=True)
    process.send_signal(signal.SIGTERM)
    finish(open_mpi, "mpi-grace", process)  # mpirun's own exit code is 1, whatever its processes exit with
    at = open_mpi.steps("mpi-grace")
    assert f"SIGTERM: saved step {at} in runs/mpi-grace" in open_mpi.output("mpi-grace")
    assert open_mpi.saved("mpi-grace") == [at]
