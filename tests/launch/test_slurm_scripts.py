"""Batch scripts of Slurm: every word, arrays of jobs for modes that train many runs."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from layers.errors import UsageError
from tests.launch.conftest import LAUNCHES, RUNNER, STUDY, rendered
from tests.support.processes.fake_launch_tools import Machine, executable


def test_slurm_gets_every_word(checkout, command):
    machine = Machine(checkout)
    done = command("launch", *LAUNCHES["slurm"], **machine.environment)
    assert done.returncode == 0, done.stderr
    script = checkout / "launches/one/job.sbatch"
    assert machine.calls() == [
        ["sbatch", str(script)],
        ["srun", "--kill-on-bad-exit=1", "--cpus-per-task=4", sys.executable, *RUNNER],
    ]
    text = script.read_text()
    head = text.partition("\n# ")[0].splitlines()[1:]
    assert all(line.startswith("#SBATCH ") for line in head)  # sbatch reads up to the first command
    options = [word for line in head for word in shlex.split(line)[1:]]
    assert {
        "--job-name=one",
        "--nodes=2",
        "--ntasks-per-node=8",
        "--gpus-per-node=8",
        "--time=1:00:00",
        "--account=a",
        "--requeue",
        "--open-mode=append",
        "--signal=TERM@300",
        f"--chdir={checkout}",
        f"--output={script.parent}/%j.out",
    } < set(options)


def test_slurm_activates_the_given_environment(checkout):
    [job, _] = rendered(LAUNCHES["slurm, activated"], checkout / "out")
    executable(checkout / "bin" / "srun", '#!/usr/bin/env bash\necho "$X" "$2"\n')
    environment = {**os.environ, "PATH": f"{checkout}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(job)], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "1 python"
    assert "\n#SBATCH '--comment=so so'\n" in job.read_text()


def test_slurm_gets_an_array_for_each_rung_of_a_study(checkout, command):
    machine = Machine(checkout)
    done = command("launch", *LAUNCHES["slurm, study"], **machine.environment, SLURM_ARRAY_TASK_ID="3")
    assert done.returncode == 0, done.stderr
    folder, dependency = checkout / "launches/one", "--dependency=afterany:7"
    runner = [sys.executable, "-m", "runners.main", *STUDY[1:]]
    assert machine.calls() == [
        ["sbatch", "--parsable", str(folder / "rung_0.sbatch")],
        ["srun", "--kill-on-bad-exit=1", *runner, "--rung=0", "--run=3"],
        ["sbatch", "--parsable", dependency, str(folder / "rung_1.sbatch")],
        ["srun", "--kill-on-bad-exit=1", *runner, "--rung=1", "--run=3"],
        ["sbatch", "--parsable", dependency, str(folder / "compare.sbatch")],
        ["srun", "--kill-on-bad-exit=1", *runner, "--workers=0"],
    ]
    heads = [(folder / f"{name}.sbatch").read_text() for name in ("rung_0", "rung_1", "compare")]
    assert [re.findall("#SBATCH --array=(.*)", head) for head in heads] == [["0-7"], ["0-3"], []]
    assert ["--gpus-per-node=8" in head for head in heads] == [True, True, False]
    assert f"--output={folder}/%A_%a.out" in heads[0]
    assert done.stdout.count("Submitted batch job 7") == 3
    [job, _] = rendered([*LAUNCHES["slurm, study"], "--workers=2"], checkout / "single")
    assert "--array" not in job.read_text(), "flags choose what one job trains"


def test_a_ladder_is_one_array(checkout):
    ladder = ["--exp=tiny.StdlibTiny", "--smoke", "--mode=scale", "--workdir=runs/one", "--widths=32,64"]
    files = rendered(
        ["slurm", "--nodes=1", "--at_once=4", "--", *ladder, "--budgets=1e10,1e11", "--seeds=3"], checkout / "out"
    )
    assert [file.name for file in files] == ["compare.sbatch", "rung_0.sbatch", "submit.sh"]
    assert "#SBATCH --array=0-11%4\n" in files[1].read_text()
    with pytest.raises(UsageError, match=r"got --sbatch=--array=0-3.* Give --at_once=4"):
        rendered(["slurm", "--nodes=1", "--sbatch=--array=0-3", *STUDY], checkout / "refused")
    assert "--rung" not in files[1].read_text().partition("\nrun ")[2]
