"""Several real processes when something goes wrong: each ends with a sentence, in time, and nothing is lost."""

import json
import os
import shutil
import signal
import time

import pytest

from tests.support.processes.starting import carry_out, finish, run, start

pytestmark = pytest.mark.slow

MAIN = "runners.main"
SMALL = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--set=EVAL_ROWS=8", "--set=EVAL_EVERY=none"]
ENDLESS = [*SMALL, "--set=NUM_STEPS=1000000", "--set=LOG_EVERY=1", "--set=SAVE_EVERY=50", "--peer_timeout=20"]


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_lines(workdir, count, started):
    wait_until(lambda: len(lines(workdir)) >= count, started)


def wait_until(true, started, seconds=600):
    """Waits until something is true, while all processes run."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        assert all(process.poll() is None for process in started), [p.communicate() for p in started]
        time.sleep(0.05)


def saved(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


@pytest.mark.parametrize(("index", "number"), [(1, signal.SIGTERM), (0, signal.SIGUSR1)])
def test_a_notice_to_one_process_saves_one_step_on_all(tmp_path, index, number):
    started = start(MAIN, 2, 2, [*ENDLESS, "--workdir=run"], tmp_path)
    wait_for_lines(tmp_path / "run", 5, started)
    started[index].send_signal(number)
    ended = finish(started, timeout=600)
    assert [process.returncode for process in ended] == [0, 0], [process.stderr for process in ended]
    step = lines(tmp_path / "run")[-1]["step"]
    assert f"SIGTERM: saved step {step} in run" in ended[0].stdout
    assert ended[1].stdout == ""  # only the first process prints
    assert saved(tmp_path / "run")[-1] == step


SLOW_SAVE = """
import time
from pathlib import Path
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from runners.training import checkpoints

@register
class SlowSave(StdlibTiny):
    '''Saving takes seconds, like that of large arrays: it waits for a file, then for others to receive a signal.'''

def save(self, step, *more, before=checkpoints.Checkpoints.save, **options):
    Path(f"saving_{step}_{self._processes.index}").touch()
    if Path("slow").exists():
        while not Path("signalled").exists():
            time.sleep(0.05)
        time.sleep(5)
    before(self, step, *more, **options)

checkpoints.Checkpoints.save = save
"""


def test_a_signal_during_a_save_of_a_resumed_run_is_received(tmp_path):
    (tmp_path / "slow_save.py").write_text(SLOW_SAVE)
    arguments = [*ENDLESS, "--exp=slow_save.SlowSave", "--set=SAVE_EVERY=7", "--workdir=run"]
    started = start(MAIN, 2, 1, arguments, tmp_path)
    wait_for_lines(tmp_path / "run", 15, started)
    started[0].terminate()
    assert [process.returncode for process in finish(started, timeout=600)] == [0, 0]
    before = saved(tmp_path / "run")[-1]
    (tmp_path / "slow").touch()
    started = start(MAIN, 2, 1, arguments, tmp_path)
    step = before - before % 7 + 7
    wait_until(lambda: all((tmp_path / f"saving_{step}_{index}").exists() for index in (0, 1)), started)
    started[1].terminate()
    (tmp_path / "signalled").touch()
    ended = finish(started, timeout=600)
    assert [process.returncode for process in ended] == [0, 0]
    last = saved(tmp_path / "run")[-1]
    assert f"SIGTERM: saved step {last} in run" in ended[0].stdout
    assert step <= last <= step + 3


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_dies_stops_the_others_with_a_sentence(tmp_path, killed):
    started = start(MAIN, 2, 1, [*ENDLESS, "--workdir=run"], tmp_path)
    wait_for_lines(tmp_path / "run", 3, started)
    started[killed].kill()
    began = time.monotonic()
    ended = finish(started, timeout=600)
    assert time.monotonic() - began < 80  # JAX's own heartbeat would take as long
    left = ended[1 - killed]
    assert left.returncode == 1
    last = left.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"vortaro: Process {killed} " if killed else ("vortaro: Process 0, the", "vortaro: Contact with")
    )
    assert last.endswith("This process stops too. Run the same command again to resume from the last checkpoint.")


def test_an_update_that_does_not_end_is_noticed_and_stacks_are_written(tmp_path):
    arguments = [*ENDLESS, "--workdir=run", "--set=STEP_TIMEOUT=20", "--peer_timeout=600"]
    started = start(MAIN, 2, 1, arguments, tmp_path)
    wait_for_lines(tmp_path / "run", 3, started)
    started[1].send_signal(signal.SIGSTOP)
    assert started[0].wait(timeout=600) == 1
    started[1].send_signal(signal.SIGCONT)
    ended = finish(started, timeout=600)
    assert "has not ended within train.step_timeout = 20 s" in ended[0].stderr
    assert "in _loop" in (tmp_path / "run/stacks/process_0.txt").read_text()
    assert ended[1].returncode == 1
    assert "process 1 (" in ended[0].stderr or "All processes are at the same update" in ended[0].stderr


def test_a_stopped_coordinator_is_detected(tmp_path):
    started = start(MAIN, 2, 1, [*ENDLESS, "--workdir=run"], tmp_path)
    wait_for_lines(tmp_path / "run", 3, started)
    started[0].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert started[1].wait(timeout=600) == 1
    assert time.monotonic() - began < 80  # JAX's own heartbeat would take as long
    started[0].send_signal(signal.SIGCONT)
    ended = finish(started, timeout=600)
    assert "Process 0, the coordinator of this run, has not answered for" in ended[1].stderr


STUCK = """
import time
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from runners.training import train

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
    arguments = [*SMALL, "--exp=stuck.Stuck", "--workdir=run", "--set=LOG_EVERY=1", "--set=STEP_TIMEOUT=20"]
    [ended] = finish(start(MAIN, 1, 1, arguments, tmp_path))
    assert ended.returncode == 1
    assert "Update 3 has not ended within train.step_timeout = 20 s. The stacks of" in ended.stderr
    assert 'stuck.py", line 12 in ask' in (tmp_path / "run/stacks/process_0.txt").read_text()


def test_who_does_not_come_is_waited_for_so_long(tmp_path):
    arguments = [*SMALL, "--workdir=run", "--join_timeout=4"]
    waiting, missing = start(MAIN, 2, 1, arguments, tmp_path)
    missing.kill()
    [ended] = finish([waiting], timeout=600)
    assert ended.returncode == 1
    assert "vortaro: This process could not connect to the others at localhost:" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A run of one process with four devices, and the flags that made it."""
    folder = tmp_path_factory.mktemp("calm")
    flags = [*SMALL, "--set=NUM_STEPS=6", "--set=SAVE_EVERY=3", "--set=LOG_EVERY=1"]
    run(MAIN, 1, 4, [*flags, "--workdir=run"], folder)
    return folder / "run", flags


DIFFERENT = {
    "seed": (lambda i: [f"--set=SEED={i}"], "process 1 ({host}) has SEED 1, process 0 has 0"),
    "experiment": (
        lambda i: ["--exp=tiny.CharTiny"] if i else [],
        "has --exp tiny.CharTiny, process 0 has tiny.StdlibTiny",
    ),
    "flags": (lambda i: ["--allow_changes"] if i else [], "has flags"),
}
MACHINES = {
    "code": "The processes of this run disagree: process 1",
    "data": "disagree: process 1",
    "workdir": "cannot read what process 0 writes to 'run'. --workdir must be a folder that all machines share",
}
# Processes, devices of each, and the overrides of the resumed run.
RESUMED = [
    (2, 2, ["DEVICE_MESH_SHAPE=2,2"]),
    (4, 1, ["ZERO_STAGE=1", "DEVICE_MESH_SHAPE=4,1"]),
    (2, 1, ["ZERO_STAGE=3"]),
]
MODES = {
    "validation": (["--host_devices=2"], "step 6 validation: loss"),
    "sample": (["--host_devices=2", "--prompt=def ", "--max_new_tokens=5"], "5 tokens in"),
    "profile": (["--profile_steps=2"], "step: median"),
}


def resumed(calm, folder, sets):
    """A copy of the calm run up to step 3, and the arguments that resume it."""
    before, flags = calm
    shutil.copytree(before, folder / "run")
    shutil.rmtree(folder / "run/checkpoints/6")
    return folder, [*flags, "--workdir=run", *(f"--set={one}" for one in sets)]


def machine(folder, what, number):
    """The folder of a machine that differs from the other one in something, and the arguments that train there."""
    name = f"mine_{what}"  # of a module: both are imported by one process after the other
    here = folder / "ab"[number]
    here.mkdir(parents=True)
    text = "All that is written here is read. " * 900 + "x" * (number if what == "data" else 0)
    (here / "text.txt").write_text(text)
    (here / f"{name}.py").write_text(
        "from registry.experiment import register\nfrom registry.experiments.tiny import StdlibTiny\n\n"
        f"@register\nclass Mine(StdlibTiny):\n    '''{number if what == 'code' else 0}'''\n"
    )
    return here, [*SMALL, f"--exp={name}.Mine", "--set=DATA_PATH=text.txt", "--workdir=run"]


@pytest.fixture(scope="module")
def small_pair(calm, tmp_path_factory):
    """What came of all commands for two processes with a device each, which met once; and their folder."""
    root = tmp_path_factory.mktemp("pair")
    scenarios = {}
    for what, (differs, _) in DIFFERENT.items():
        folder = make(root / what)
        scenarios[what] = lambda i, at=folder, differs=differs: (at, [*SMALL, "--workdir=run", *differs(i)])
    for what in MACHINES:
        scenarios[what] = lambda i, what=what: machine(root / what, what, i)
    scenarios["inspect_data"] = (
        make(root / "inspect_data"),
        ["--exp=tiny.StdlibTiny", "--mode=inspect_data", "--workdir=run"],
    )
    scenarios["2x1"] = resumed(calm, make(root / "2x1"), RESUMED[2][2])
    return carry_out(scenarios, 2, 1, root), root


@pytest.fixture(scope="module")
def pair(calm, tmp_path_factory):
    """As `small_pair`, with two devices each."""
    root = tmp_path_factory.mktemp("pair")
    before, flags = calm
    scenarios = {"2x2": resumed(calm, make(root / "2x2"), RESUMED[0][2])}
    damaged = make(root / "damaged")
    shutil.copytree(before, damaged / "run")
    for path in (damaged / "run/checkpoints/6/state").rglob("d/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4  # one bit of an array
        path.write_bytes(content)
    scenarios["damaged"] = (damaged, [*flags, "--workdir=run"])
    for mode, (more, _) in MODES.items():
        shutil.copytree(before, make(root / mode) / "run")
        own = flags if mode == "profile" else []
        scenarios[mode] = (root / mode, [*own, "--workdir=run", f"--mode={mode}", *more])
    return carry_out(scenarios, 2, 2, root), root


@pytest.fixture(scope="module")
def four(calm, tmp_path_factory):
    """A run of four processes."""
    root = tmp_path_factory.mktemp("four")
    return carry_out({"4x1": resumed(calm, make(root / "4x1"), RESUMED[1][2])}, 4, 1, root), root


def make(folder):
    folder.mkdir()
    return folder


def refused(ended, message):
    """Holds that all processes ended with exit code 2 and the same one sentence."""
    assert [process.returncode for process in ended] == [2, 2], [process.stderr for process in ended]
    for process in ended:
        [line] = [line for line in process.stderr.splitlines() if line.startswith("vortaro: ")]
        assert message.format(host=os.uname().nodename) in line


@pytest.mark.parametrize("what", DIFFERENT)
def test_processes_that_disagree_are_named(small_pair, what):
    ended, root = small_pair
    refused(ended[what], DIFFERENT[what][1])
    assert not (root / what / "run").exists()


def test_processes_of_other_devices_are_named_and_end(tmp_path):
    """In processes of their own, which end: each with the sentence and the exit code."""
    started = start(MAIN, 2, 1, lambda i: [*SMALL, "--workdir=run", f"--host_devices={i + 1}"], tmp_path)
    refused(finish(started, timeout=600), "has devices 2 x cpu, process 0 has 1 x cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", MACHINES)
def test_machines_that_differ_are_named(small_pair, what):
    ended = small_pair[0][what]
    assert [process.returncode for process in ended] == [2, 2], [process.stderr for process in ended]
    assert MACHINES[what] in ended[0].stderr


def test_other_modes_run_in_one_process(small_pair):
    ended = small_pair[0]["inspect_data"]
    assert [process.returncode for process in ended] == [2, 2]
    assert "--mode=inspect_data runs in one process (got 2)." in ended[0].stderr


@pytest.mark.parametrize(("count", "devices", "sets"), RESUMED)
def test_a_run_resumes_with_other_processes_mesh_and_zero_stage(calm, request, count, devices, sets):
    fixture = {(2, 2): "pair", (4, 1): "four", (2, 1): "small_pair"}[count, devices]
    ended, root = request.getfixturevalue(fixture)
    name = f"{count}x{devices}"
    assert [process.returncode for process in ended[name]] == [0] * count, ended[name]
    assert "Resumed at step 3" in ended[name][0].stdout
    found, expected = (lines(folder) for folder in (root / name / "run", calm[0]))
    assert [(line["step"], line["split"]) for line in found] == [(line["step"], line["split"]) for line in expected]
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=2e-6)


def test_a_checkpoint_that_one_process_cannot_read_is_passed_over_by_all(calm, pair):
    ended, root = pair[0]["damaged"], pair[1]
    assert [process.returncode for process in ended] == [0, 0], ended
    assert "Checkpoint 6 is damaged and skipped" in ended[0].stdout
    assert "Resumed at step 3" in ended[0].stdout
    assert [line["loss"] for line in lines(root / "damaged/run")] == pytest.approx(
        [line["loss"] for line in lines(calm[0])], rel=2e-6
    )


@pytest.mark.parametrize("mode", MODES)
def test_other_modes_of_several_processes(pair, mode):
    first, second = pair[0][mode]
    assert [first.returncode, second.returncode] == [0, 0], (first, second)
    assert MODES[mode][1] in first.stdout
    assert second.stdout == ""
