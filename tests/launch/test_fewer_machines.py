"""A run of mpirun continues without a machine that does not answer, and on it again once it answers."""

import json
import os
import shlex
import sys

import pytest

from launch import supervisor
from launch.command_line import parse
from launch.fewer_machines import slots_of
from layers.errors import UsageError
from registry.runs.state import FINISHED
from tests.launch.conftest import rendered
from tests.support.processes.fake_launch_tools import executable

# Fails if a machine in `down` is among its own. On fewer than four it saves a checkpoint, after which all machines
# answer, and ends by SIGTERM; on four it finishes.
MPIRUN = f"""#!{sys.executable}
import json, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
machines = [part.partition(":")[0] for part in sys.argv[sys.argv.index("--host") + 1].split(",")]
with (here / "calls").open("a") as file:
    print(json.dumps([machines, int(sys.argv[sys.argv.index("-n") + 1]), sys.argv[-1]]), file=file)
if set(machines) & set((here / "down").read_text().split()):
    print("ssh: connect to host: No route to host", file=sys.stderr)
    sys.exit(1)
if sys.argv[-1] == "true":
    sys.exit(0)
if len(machines) == 4:
    (here / "run" / "experiment.json").write_text(json.dumps({{"starts": [{{"ended": {{"reason": "{FINISHED}"}}}}]}}))
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
(here / "run" / "checkpoints" / "10").mkdir(parents=True)
(here / "down").write_text("")
time.sleep(60)
"""


def test_a_machine_that_does_not_answer(tmp_path, capsys):
    executable(tmp_path / "mpirun", MPIRUN)
    (tmp_path / "run").mkdir()
    (tmp_path / "down").write_text("c")
    words = [str(tmp_path / "mpirun"), "-n", "{processes}", "--host", "{hosts}", "train"]
    flags = ["--restarts=5", f"--workdir={tmp_path}/run", "--fewest=4", "--hosts=a:2,b:2,c:2,d:2"]
    assert supervisor.run([*flags, "--", *words]) == 0
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    runs = [(machines, count) for machines, count, word in calls if word == "train"]
    assert runs == [(list("abcd"), 8), (list("abcd"), 8), (list("ab"), 4), (list("abcd"), 8)]
    assert [machines for machines, _, word in calls if word == "true"] == [*map(list, "abcabc"), ["c"]]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "vortaro: Machine c does not answer (exit code 1: ssh: connect to host: No route to host).",
        "vortaro: The run ended with exit code 1 without a checkpoint. Restart 1 of 5 in 1 s.",
        "vortaro: Machine c does not answer (exit code 1: ssh: connect to host: No route to host).",
        "vortaro: Machine c did not answer again without a new checkpoint. The run continues with 4 processes.",
        "vortaro: The run saved a checkpoint and is started with all 8 processes again.",
    ]


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


@pytest.mark.parametrize("hosts", ["--hosts=a:4", "--hosts=a:3,b:1", "--hosts=a:1,b:1", "--hostfile=machines"])
def test_machines_that_differ_are_refused(hosts):
    flags = ["--num_processes=4", "--restarts=1", "--fewest=1", hosts]
    with pytest.raises(UsageError, match="--fewest needs machines with the same number of processes each, 4 together"):
        parse(["mpirun", *flags, "--", "--exp=tiny.StdlibTiny", "--workdir=runs/a"])


def test_slots():
    assert slots_of("a:2,b:2") == {"a": 2, "b": 2}
    assert slots_of("a,b,a") == {"a": 2, "b": 1}
    assert slots_of("a,b", 4) == {"a": 4, "b": 4}


def test_both_flags_or_neither():
    with pytest.raises(UsageError, match="--fewest and --hosts need each other"):
        supervisor.run(["--restarts=1", "--fewest=1", "--", os.devnull])
