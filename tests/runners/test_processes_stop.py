"""Several real processes when something goes wrong: each ends with a sentence, in time, and nothing is lost."""

import json
import os
import shutil
import signal
import time

import pytest

from tests.runners.processes import finish, run, start

pytestmark = pytest.mark.slow

MAIN = "runners.main"
SMALL = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--set=EVAL_ROWS=8", "--set=EVAL_EVERY=none"]
ENDLESS = [*SMALL, "--set=NUM_STEPS=1000000", "--set=LOG_EVERY=1", "--set=SAVE_EVERY=50", "--peer_timeout=20"]


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_lines(workdir, count, started, seconds=200):
    until = time.monotonic() + seconds
    while len(lines(workdir)) < count:
        assert time.monotonic() < until, "no metrics"
        assert all(process.poll() is None for process in started), [p.communicate() for p in started]
        time.sleep(0.05)


def saved(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


@pytest.mark.parametrize(("told", "number"), [(1, signal.SIGTERM), (0, signal.SIGUSR1)])
def test_a_notice_to_one_process_saves_one_step_on_all(tmp_path, told, number):
    started = start(MAIN, 2, 2, [*ENDLESS, "--workdir=run"], tmp_path)
    wait_for_lines(tmp_path / "run", 5, started)
    started[told].send_signal(number)
    ended = finish(started, timeout=100)
    assert [process.returncode for process in ended] == [0, 0], [process.stderr for process in ended]
    step = lines(tmp_path / "run")[-1]["step"]
    assert f"SIGTERM: saved step {step} in run" in ended[0].stdout
    assert ended[1].stdout == ""  # one speaks for all
    assert saved(tmp_path / "run")[-1] == step


SLOW_SAVE = """
import time
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from runners import checkpoints

@register
class SlowSave(StdlibTiny):
    '''Saving takes seconds, as that of large arrays does.'''

def save(self, step, *more, before=checkpoints.Checkpoints.save):
    time.sleep(4)
    before(self, step, *more)

checkpoints.Checkpoints.save = save
"""


def test_a_notice_during_a_save_of_a_resumed_run_is_heard(tmp_path):
    (tmp_path / "slow_save.py").write_text(SLOW_SAVE)
    arguments = [*ENDLESS, "--exp=slow_save.SlowSave", "--set=SAVE_EVERY=7", "--workdir=run"]
    started = start(MAIN, 2, 1, arguments, tmp_path)
    wait_for_lines(tmp_path / "run", 15, started)
    started[0].terminate()
    assert [process.returncode for process in finish(started, timeout=100)] == [0, 0]
    before = saved(tmp_path / "run")[-1]
    started = start(MAIN, 2, 1, arguments, tmp_path)
    until = before - before % 7 + 7
    wait_for_lines(tmp_path / "run", until, started)
    time.sleep(2)  # in the save of that step
    started[1].terminate()
    ended = finish(started, timeout=100)
    assert [process.returncode for process in ended] == [0, 0]
    step = saved(tmp_path / "run")[-1]
    assert f"SIGTERM: saved step {step} in run" in ended[0].stdout
    assert until <= step <= until + 3


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_dies_stops_the_others_with_a_sentence(tmp_path, killed):
    started = start(MAIN, 2, 1, [*ENDLESS, "--workdir=run"], tmp_path)
    wait_for_lines(tmp_path / "run", 3, started)
    started[killed].kill()
    began = time.monotonic()
    ended = finish(started, timeout=100)
    assert time.monotonic() - began < 60
    left = ended[1 - killed]
    assert left.returncode == 1
    last = left.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"vortaro: Process {killed} " if killed else ("vortaro: Process 0, the", "vortaro: Contact with")
    )
    assert last.endswith("This process stops too; the same command goes on from the last checkpoint.")


def test_an_update_that_does_not_end_is_noticed_and_stacks_are_written(tmp_path):
    arguments = [*ENDLESS, "--workdir=run", "--set=STEP_TIMEOUT=15", "--peer_timeout=600"]
    started = start(MAIN, 2, 1, arguments, tmp_path)
    wait_for_lines(tmp_path / "run", 3, started)
    started[1].send_signal(signal.SIGSTOP)
    assert started[0].wait(timeout=100) == 1
    started[1].send_signal(signal.SIGCONT)
    ended = finish(started, timeout=100)
    assert "has not ended within train.step_timeout = 15 s" in ended[0].stderr
    assert "in _loop" in (tmp_path / "run/stacks/process_0.txt").read_text()
    assert ended[1].returncode == 1
    assert "process 1 (" in ended[0].stderr or "all processes are in it" in ended[0].stderr


def test_a_coordinator_that_stands_still_is_noticed(tmp_path):
    started = start(MAIN, 2, 1, [*ENDLESS, "--workdir=run", "--peer_timeout=8"], tmp_path)
    wait_for_lines(tmp_path / "run", 3, started)
    started[0].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert started[1].wait(timeout=100) == 1
    assert time.monotonic() - began < 40  # JAX's own heartbeat would take 68 seconds
    started[0].send_signal(signal.SIGCONT)
    ended = finish(started, timeout=100)
    assert "Process 0, the coordinator of this run, has not answered for" in ended[1].stderr


STUCK = """
import time
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from runners import train

@register
class Stuck(StdlibTiny):
    '''Its third report never ends.'''

def ask(self, step, before=train._Run._ask):
    time.sleep(600 if step == 3 else 0)
    before(self, step)

train._Run._ask = ask
"""


def test_one_process_alone_is_watched_too(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    arguments = [*SMALL, "--exp=stuck.Stuck", "--workdir=run", "--set=LOG_EVERY=1", "--set=STEP_TIMEOUT=2"]
    [ended] = finish(start(MAIN, 1, 1, arguments, tmp_path))
    assert ended.returncode == 1
    assert "Update 3 has not ended within train.step_timeout = 2 s: it is stuck" in ended.stderr
    assert 'stuck.py", line 12 in ask' in (tmp_path / "run/stacks/process_0.txt").read_text()


DIFFERENT = {
    "seed": (lambda i: [f"--set=SEED={i}"], "process 1 ({host}) has SEED 1, process 0 has 0"),
    "experiment": (
        lambda i: ["--exp=tiny.CharTiny"] if i else [],
        "has --exp tiny.CharTiny, process 0 has tiny.StdlibTiny",
    ),
    "devices": (lambda i: [f"--host_devices={i + 1}"], "has devices 2 x cpu, process 0 has 1 x cpu"),
    "flags": (lambda i: ["--allow_changes"] if i else [], "has flags"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_processes_that_disagree_are_named(tmp_path, what):
    differs, said = DIFFERENT[what]
    started = start(MAIN, 2, 1, lambda i: [*SMALL, "--workdir=run", *differs(i)], tmp_path)
    ended = finish(started, timeout=100)
    assert [process.returncode for process in ended] == [2, 2], [process.stderr for process in ended]
    for process in ended:
        [line] = [line for line in process.stderr.splitlines() if line.startswith("vortaro: ")]
        assert said.format(host=os.uname().nodename) in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("code", "The processes of this run disagree: process 1"),
        ("data", "disagree: process 1"),
        ("workdir", "does not see what process 0 writes to 'run': --workdir must be a folder that all machines share"),
    ],
)
def test_machines_that_differ_are_named(tmp_path, other, said):
    here, there = tmp_path / "a", tmp_path / "b"
    for number, folder in enumerate((here, there)):
        folder.mkdir()
        (folder / "text.txt").write_text(
            "All that is written here is read. " * 900 + "x" * (number if other == "data" else 0)
        )
        (folder / "mine.py").write_text(
            "from registry.experiment import register\nfrom registry.experiments.tiny import StdlibTiny\n\n"
            f"@register\nclass Mine(StdlibTiny):\n    '''{number if other == 'code' else 0}'''\n"
        )
    arguments = [*SMALL, "--exp=mine.Mine", "--set=DATA_PATH=text.txt", "--workdir=run"]
    started = start(MAIN, 2, 1, arguments, lambda index: (here, there)[index])
    ended = finish(started, timeout=100)
    assert [process.returncode for process in ended] == [2, 2], [process.stderr for process in ended]
    assert said in ended[0].stderr


def test_who_does_not_come_is_waited_for_so_long(tmp_path):
    arguments = [*SMALL, "--workdir=run", "--join_timeout=4"]
    waiting, missing = start(MAIN, 2, 1, arguments, tmp_path)
    missing.kill()
    [ended] = finish([waiting], timeout=100)
    assert ended.returncode == 1
    assert "vortaro: This process did not meet the others at localhost:" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_other_modes_run_in_one_process(tmp_path):
    ended = finish(start(MAIN, 2, 1, ["--exp=tiny.StdlibTiny", "--mode=inspect_data", "--workdir=run"], tmp_path))
    assert [process.returncode for process in ended] == [2, 2]
    assert "--mode=inspect_data runs in one process, and there are 2." in ended[0].stderr


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A run of one process with four devices, and the flags that made it."""
    folder = tmp_path_factory.mktemp("calm")
    flags = [*SMALL, "--set=NUM_STEPS=6", "--set=SAVE_EVERY=3", "--set=LOG_EVERY=1"]
    run(MAIN, 1, 4, [*flags, "--workdir=run"], folder)
    return folder / "run", flags


@pytest.mark.parametrize(
    ("count", "devices", "sets"),
    [(2, 2, ["DEVICE_MESH_SHAPE=2,2"]), (4, 1, ["ZERO_STAGE=1", "DEVICE_MESH_SHAPE=4,1"]), (2, 1, ["ZERO_STAGE=3"])],
)
def test_a_run_goes_on_with_other_processes_mesh_and_zero_stage(calm, tmp_path, count, devices, sets):
    before, flags = calm
    shutil.copytree(before, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/6")
    ended = run(MAIN, count, devices, [*flags, "--workdir=run", *(f"--set={one}" for one in sets)], tmp_path)
    assert "Resumed at step 3" in ended[0].stdout
    found, expected = (lines(folder) for folder in (tmp_path / "run", before))
    assert [(line["step"], line["split"]) for line in found] == [(line["step"], line["split"]) for line in expected]
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=2e-6)


def test_a_checkpoint_that_one_process_cannot_read_is_passed_over_by_all(calm, tmp_path):
    before, flags = calm
    shutil.copytree(before, tmp_path / "run")
    for path in (tmp_path / "run/checkpoints/6/state").rglob("d/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4  # one bit of an array
        path.write_bytes(content)
    ended = run(MAIN, 2, 2, [*flags, "--workdir=run"], tmp_path)
    assert "Checkpoint 6 is damaged and passed over" in ended[0].stdout
    assert "Resumed at step 3" in ended[0].stdout
    assert [line["loss"] for line in lines(tmp_path / "run")] == pytest.approx(
        [line["loss"] for line in lines(before)], rel=2e-6
    )


@pytest.mark.parametrize("mode", ["validation", "sample", "profile"])
def test_other_modes_of_several_processes(calm, tmp_path, mode):
    before, flags = calm
    shutil.copytree(before, tmp_path / "run")
    more = {"sample": ["--prompt=def ", "--max_new_tokens=5"], "profile": ["--profile_steps=2"]}.get(mode, [])
    flags = flags if mode == "profile" else ["--host_devices=2"]
    [first, second] = run(MAIN, 2, 2, [*flags, "--workdir=run", f"--mode={mode}", *more], tmp_path)
    said = {"validation": "step 6 validation: loss", "sample": "5 tokens in", "profile": "step: median"}[mode]
    assert said in first.stdout
    assert second.stdout == ""
