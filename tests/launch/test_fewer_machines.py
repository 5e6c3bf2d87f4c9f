"""A run of mpirun continues without a machine that does not answer, and on it again once it answers."""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time

import pytest

from launch import fewer_machines, supervisor
from launch.command_line import parse
from launch.fewer_machines import Machines, slots_of
from layers.errors import UsageError
from registry.runs.state import FINISHED
from tests.launch.conftest import rendered
from tests.support.processes.fake_launch_tools import executable

# Fails if a machine in `down` is among its own. On fewer than four it saves a checkpoint, after which all machines
# answer, and ends by SIGUSR1, with exit code 1 as mpirun may; on four it finishes.
MPIRUN = f"""#!{sys.executable}
import json, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
machines = [part.partition(":")[0] for part in sys.argv[sys.argv.index("--host") + 1].split(",")]
with (here / "calls").open("a") as file:
    print(json.dumps([machines, int(sys.argv[sys.argv.index("-n") + 1]), sys.argv[-1]]), file=file)
if set(machines) & set((here / "down").read_text().split()):
    if "slow" in (here / "down").read_text():
        time.sleep(60)
    print("ssh: connect to host: No route to host", file=sys.stderr)
    sys.exit(1)
if sys.argv[-1] == "true":
    sys.exit(0)
if len(machines) == 4:
    (here / "run" / "experiment.json").write_text(json.dumps({{"starts": [{{"ended": {{"reason": "{FINISHED}"}}}}]}}))
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(1))
(here / "run" / "checkpoints" / "10").mkdir(parents=True)
(here / "down").write_text("")
time.sleep(60)
"""


def supervised(folder, down):
    """Runs the supervisor with the fake; returns its exit code, and the machines and processes of each run."""
    executable(folder / "mpirun", MPIRUN)
    (folder / "run").mkdir()
    (folder / "down").write_text(down)
    words = [str(folder / "mpirun"), "-n", "{processes}", "--host", "{hosts}", "train"]
    flags = ["--restarts=5", f"--workdir={folder}/run", "--fewest=4", "--hosts=a:2,b:2,c:2,d:2"]
    code = supervisor.run([*flags, "--", *words])
    calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    return code, [(machines, count) for machines, count, word in calls if word == "train"]


@pytest.mark.parametrize(
    ("down", "does", "did"),
    [
        ("c", "Machine c does not answer", "Machine c did not answer"),
        ("b d", "Machines b, d do not answer", "Machines b, d did not answer"),
    ],
)
def test_machines_that_do_not_answer(tmp_path, capsys, down, does, did):
    left = list("ab") if down == "c" else list("ac")
    assert supervised(tmp_path, down) == (0, [(list("abcd"), 8), (list("abcd"), 8), (left, 4), (list("abcd"), 8)])
    assert capsys.readouterr().err.splitlines() == [
        f"vortaro: {does} (ssh: connect to host: No route to host).",
        "vortaro: The run ended with exit code 1 without a checkpoint. Restart 1 of 5 in 1 s.",
        f"vortaro: {does} (ssh: connect to host: No route to host).",
        f"vortaro: {did} again without a new checkpoint. The run continues with 4 processes.",
        "vortaro: The run saved a checkpoint and is started with all 8 processes again.",
    ]


def test_a_signal_ends_questions(tmp_path, monkeypatch):
    executable(tmp_path / "mpirun", MPIRUN)
    (tmp_path / "down").write_text("b slow")
    machines, received = Machines([str(tmp_path / "mpirun")], {"a": 1, "b": 1}), []
    machines._received = received
    threading.Timer(0.5, received.append, [signal.SIGTERM]).start()
    began = time.monotonic()
    assert not machines.are_back([0, 1])
    assert time.monotonic() - began < 30
    monkeypatch.setattr(fewer_machines, "ANSWER_SECONDS", 0.5)
    received.clear()
    assert machines._lost([0, 1])[-1:] == [1]


def test_the_script_states_the_machines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launch = ["mpirun", "--num_processes=4", "--hosts=a,b", "--processes_per_host=2", "--restarts=3", "--fewest=2"]
    [script] = rendered([*launch, "--", "--exp=tiny.StdlibTiny", "--workdir=runs/a"], tmp_path / "out")
    line = next(line for line in script.read_text().splitlines() if line.startswith("set -- "))
    words = " ".join(shlex.split(line))
    assert (
        "launch.supervisor --restarts=3 --workdir=runs/a --fewest=2 --hosts=a:2,b:2 -- mpirun -n {processes}" in words
    )
    assert "--host {hosts} --map-by ppr:2:node" in words


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("--hosts=a:4", "together --num_processes = 4 (got a:4). Change --hosts."),
        ("--hosts=a:3,b:1", "together --num_processes = 4 (got a:3,b:1). Change --hosts."),
        ("--hosts=a,b", "together --num_processes = 4 (got a:1,b:1). Change --hosts."),
        ("--hosts=a:2,,b:2", "--hosts must be like A:N,B:N (got 'a:2,,b:2')."),
        ("--hosts=a:x,b:x", "--hosts must be like A:N,B:N (got 'a:x,b:x')."),
        ("--hostfile=machines", "--fewest needs the names of the machines. Give --hosts=A:N,B:N."),
    ],
)
def test_machines_that_are_refused(hosts, message):
    flags = ["--num_processes=4", "--restarts=1", "--fewest=1", hosts]
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(["mpirun", *flags, "--", "--exp=tiny.StdlibTiny", "--workdir=runs/a"])


def test_slots():
    assert slots_of("a:2,b:2") == {"a": 2, "b": 2}
    assert slots_of("a,b,a") == {"a": 2, "b": 1}
    assert slots_of("a,b", 4) == {"a": 4, "b": 4}


def test_both_flags_or_neither():
    with pytest.raises(UsageError, match="--fewest and --hosts need each other"):
        supervisor.run(["--restarts=1", "--fewest=1", "--", os.devnull])
