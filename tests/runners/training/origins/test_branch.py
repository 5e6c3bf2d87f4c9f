"""Refusals of --branch."""

import pytest

from runners.main import main
from testing import launches

FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--set=NUM_STEPS=4", "--set=SAVE_EVERY=2"]
FLAGS += ["--set=SCHEDULE=constant", "--set=LOG_EVERY=2", "--set=EVAL_EVERY=100"]


@pytest.fixture(scope="module")
def stable(tmp_path_factory):
    """The folder of a run with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("branches") / "stable"
    assert main([*FLAGS, f"--workdir={folder}"]) == 0
    assert launches.saved_steps(folder) == [2, 4]
    return folder


@pytest.mark.parametrize(
    ("step", "sets", "message"),
    [
        ("@3", [], "Unknown checkpoint '3'. Choose last, best or one of 2, 4"),
        ("@4", [], "begins at step 4, and this run ends at NUM_STEPS = 4. Raise it"),
        ("", [], "begins at step 4, and this run ends at NUM_STEPS = 4"),
        ("x@2", [], "does not exist"),
        ("@2", ["BETA1=0.8"], "task.optimizer.beta1 is 0.9 there and 0.8 here"),
        ("@2", ["SEQ_LEN=16"], "train.input.seq_len is 32 there and 16 here"),
        ("@2", ["LEARNING_RATE=0.1"], "task.optimizer.learning_rate is 0.003 there and 0.1 here"),
        ("@2", ["WARMUP_STEPS=0"], "the learning rate of update 1 is 0.5 of the peak there and 1 here"),
        ("@2", ["PHASES=(Phase(), Phase(steps=3,ROTARY_BASE=5.))"], "rotary_base is 10000.0 there and 5.0 here"),
        ("@2", ["PHASES=(Phase(), Phase(steps=3,schedule='sqrt'))"], None),
        ("@2", ["PHASES=(Phase(), Phase(steps=2,SEQ_LEN=16,ROTARY_BASE=5.))", "LOG_EVERY=1"], None),
    ],
)
def test_updates_before_the_step_must_be_the_same(stable, tmp_path, capsys, step, sets, message):
    flags = [*FLAGS, *(f"--set={each}" for each in sets), f"--branch={stable}{step}", f"--workdir={tmp_path}/new"]
    assert main(flags) == (0 if message is None else 2)
    error = capsys.readouterr().err
    assert message is None or message in error
    assert (tmp_path / "new").exists() == (message is None), "nothing is written before the checks"


def test_a_folder_with_another_run_is_refused(stable, tmp_path, capsys):
    assert main([*FLAGS, f"--branch={stable}@2", f"--workdir={stable}"]) == 2
    assert f"holds a run that is not a branch of '{stable}'" in capsys.readouterr().err
    assert main([*FLAGS, f"--branch={stable}@2", f"--workdir={tmp_path}"]) == 0
    assert main([*FLAGS, "--branch=other@2", f"--workdir={tmp_path}"]) == 2
    assert "is not a branch of 'other'" in capsys.readouterr().err
    assert main([*FLAGS, f"--branch={stable}@2", f"--workdir={tmp_path}"]) == 0


def test_other_updates_are_accepted_on_request(stable, tmp_path, capsys):
    flags = [*FLAGS, "--set=BETA1=0.8", "--allow_changes", f"--branch={stable}@2", f"--workdir={tmp_path}"]
    assert main(flags) == 0
    assert f"Continued from {stable} (step 2)" in capsys.readouterr().out
