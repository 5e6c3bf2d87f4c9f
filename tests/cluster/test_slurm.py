"""Training under a real Slurm of two nodes on this machine: what `launch slurm` writes is what is submitted."""

import json
import os
import signal
import time

import pytest

from tests.cluster.conftest import EXPERIMENT, STEPS, pid_of, wait
from tests.cluster.slurm import KILL_WAIT

TWO = ("--nodes=2", "--tasks_per_node=1")


@pytest.fixture(scope="module")
def undisturbed(cluster) -> list[float]:
    """The losses of a run of two tasks that nothing happens to."""
    cluster.render("slurm", "undisturbed", *TWO)
    assert cluster.finish("undisturbed", cluster.submit("undisturbed")) == "COMPLETED 0:0"
    assert cluster.output("undisturbed").count("Done: ") == 1
    return cluster.losses("undisturbed")


def test_two_tasks_have_the_losses_of_one_process(undisturbed, alone):
    assert len(alone) == STEPS
    assert undisturbed == pytest.approx(alone, rel=1e-6)


def test_four_tasks_have_the_losses_of_one_process(cluster, alone):
    cluster.render("slurm", "four", "--nodes=2", "--tasks_per_node=2", devices=1)
    assert cluster.finish("four", cluster.submit("four"), within=400) == "COMPLETED 0:0"
    assert cluster.losses("four") == pytest.approx(alone, rel=1e-6)


def test_after_sigterm_the_same_file_resumes(cluster, undisturbed):
    cluster.render("slurm", "signalled", *TWO)
    job = cluster.submit("signalled")
    cluster.reach("signalled", 5, job)
    cluster.shell("scancel", "--signal=TERM", job)
    assert cluster.finish("signalled", job) == "COMPLETED 0:0"
    at = cluster.steps("signalled")
    assert 5 <= at < STEPS
    assert f"SIGTERM: saved step {at} in runs/signalled" in cluster.output("signalled")
    assert cluster.saved("signalled")[-1] == at
    job = cluster.submit("signalled")
    assert cluster.finish("signalled", job) == "COMPLETED 0:0"
    assert f"Resumed at step {at} from" in cluster.output("signalled")
    assert cluster.losses("signalled") == pytest.approx(undisturbed, rel=1e-6)


def test_scancel_leaves_time_to_save(cluster):
    cluster.render("slurm", "cancelled", *TWO)
    job = cluster.submit("cancelled")
    cluster.reach("cancelled", 5, job)
    cluster.shell("scancel", job)
    assert cluster.finish("cancelled", job).startswith("CANCELLED")
    at = cluster.steps("cancelled")
    assert 5 <= at < STEPS
    assert cluster.saved("cancelled")[-1] == at


def test_slurm_signals_a_job_before_its_time_is_up(cluster):
    # Slurm looks at time limits twice a minute, and may signal a job up to a minute early.
    cluster.render("slurm", "limited", *TWO, "--time=2", "--notice=30", NUM_STEPS=100_000, SAVE_EVERY=100_000)
    job = cluster.submit("limited")
    assert cluster.finish("limited", job) == "COMPLETED 0:0"
    at = cluster.steps("limited")
    assert f"SIGTERM: saved step {at} in runs/limited" in cluster.output("limited")
    assert cluster.saved("limited") == [at]


def test_a_killed_task_ends_the_job_which_resumes_when_requeued(cluster, undisturbed):
    cluster.render("slurm", "killed", *TWO)
    job = cluster.submit("killed")
    cluster.reach("killed", 25, job)
    print("$ kill -KILL PID  # of task 1")
    os.kill(pid_of(job, task=1), signal.SIGKILL)
    began = time.monotonic()
    assert cluster.finish("killed", job).startswith("FAILED")
    assert time.monotonic() - began < KILL_WAIT + 15
    # Slurm itself would wait two minutes. At once is too soon: the nodes still refuse the job's old credential.
    cluster.shell("scontrol", "requeue", job)
    cluster.shell("scontrol", "update", f"jobid={job}", "StartTime=now+5")
    assert cluster.finish("killed", job) == "COMPLETED 0:0"
    assert "Resumed at step 20 from" in cluster.output("killed")
    assert cluster.losses("killed") == pytest.approx(undisturbed, rel=1e-6)


def test_a_study_is_an_array_for_each_rung(cluster):
    study = 'Study(how="halving", values={"LEARNING_RATE": (0.0003, 0.003, 0.03)}, keep=3, rungs=2)'
    flags = [*EXPERIMENT, "--mode=study", "--workdir=runs/study", "--host_devices=1", f"--set=STUDY={study}"]
    activate = ("--nodes=1", "--activate=. .venv/bin/activate")
    cluster.shell("python", "-m", "launch", "slurm", *activate, "--", *flags)
    summary = cluster.folder / "runs" / "study" / "study.json"
    wait(summary.exists, 400, lambda: cluster.output("study"))
    found = json.loads(summary.read_text())
    best = found["order"][0]
    assert [len(case["losses"]) for case in found["cases"]].count(2) == 1, "one case continues"
    assert None not in [loss for case in found["cases"] for loss in case["losses"].values()]
    assert len(found["cases"][best]["losses"]) == 2
    output = cluster.output("study")
    assert output.count("Resumed at step 10") == 1
    assert "3 of 3 runs have been trained before" in output, "the last job compares"
    cluster.shell("python", "-m", "registry", "runs", "runs/study/cases/*")
    log = {path.name.partition("_")[0] for path in (cluster.folder / "launches" / "study").glob("*_*.out")}
    assert len(log) == 2, "two arrays"
