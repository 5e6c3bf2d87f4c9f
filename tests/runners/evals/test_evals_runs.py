"""Training that runs tasks with every evaluation, and evaluation by several processes."""

import json

import pytest

from tests.support import evals
from tests.support.plugins import commands
from tests.support.processes.starting import carry_out

pytest.importorskip("lm_eval", reason="needs the extra evals: pip install -c constraints.txt -e '.[evals]'")
pytestmark = pytest.mark.slow

KNOBS = ["NUM_STEPS=6", "EVAL_EVERY=3", "SAVE_EVERY=3", "EVAL_ROWS=8", "WARMUP_STEPS=1", "DTYPE=float32"]
FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", *(f"--set={knob}" for knob in [*KNOBS, "DEVICE_MESH_SHAPE=4,1"])]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return evals.task_files(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def single(tmp_path_factory, tasks):
    """A run of one process that evaluates tasks while it trains, and what it printed; on standard error nothing."""
    folder = tmp_path_factory.mktemp("single")
    done = commands.inside(folder, "runners.main", "--workdir=run", *training(tasks), devices=4, **OFFLINE)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "run", done.stdout


def training(tasks):
    names = ",".join(evals.NAMES)
    return [*FLAGS, "--tensorboard", f"--set=EVAL_TASKS={names}", f"--set=EVAL_TASK_PATH={tasks}", "--set=EVAL_LIMIT=4"]


def lines(run, split="evals"):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def test_tasks_run_with_every_evaluation(single, tasks):
    run, out = single
    assert [line["step"] for line in lines(run)] == [3, 3, 3, 6, 6, 6]
    assert [line["step"] for line in lines(run, "validation")] == [3, 6]
    assert {line["capitals/documents"] for line in lines(run) if "capitals/acc" in line} == {4}
    assert out.count("Scored 4 texts in") == 2
    assert "step      3 evals  capitals/acc " in out
    page = (run / "report.html").read_text()
    assert "Evaluation tasks" in page
    assert 'data-metric="capitals/acc"' in page
    assert list((run / "tensorboard" / "evals").iterdir())
    again = commands.inside(run, "runners.main", f"--workdir={run}", "--mode=evals", devices=4, **OFFLINE)
    assert again.returncode == 0, again.stderr
    assert len(lines(run)) == 6, "the results of training, by the tasks of Test()"


def machine(folder, index):
    """The folder of a machine whose task files are under the same name, but have other data in the second."""
    files = evals.task_files(folder / str(index) / "tasks") / "capitals.jsonl"
    files.write_text(files.read_text().replace("France", ("France", "Malta")[index]))
    return folder / str(index)


@pytest.fixture(scope="module")
def pair(single, tasks, tmp_path_factory):
    """What came of commands for two processes, and their folder."""
    root = tmp_path_factory.mktemp("pair")
    mode = [f"--workdir={single[0]}", "--mode=evals"]
    scenarios = {
        "training": (root, [*training(tasks), "--workdir=run", "--no-tensorboard"]),
        "evals": (root, ["--workdir=run", "--mode=evals", "--limit=3", "--log_samples"]),
        "data": lambda index: (machine(root, index), [*mode, "--tasks=capitals", "--task_path=tasks"]),
        "unknown": (root, [*mode, "--tasks=wrong", f"--task_path={tasks}"]),
    }
    return carry_out(scenarios, 2, 2, root), root


def test_processes_find_what_one_finds(single, pair):
    ended, root = pair
    assert [process.returncode for process in (*ended["training"], *ended["evals"])] == [0] * 4, ended
    assert [process.stdout.count("Scored 3 texts") for process in ended["evals"]] == [1, 0]
    assert len(list((root / "run" / "evals" / "00000006").iterdir())) == 3
    together = lines(root / "run")
    assert len(together) == 9
    for line, alone in zip(together[:6], lines(single[0]), strict=True):
        assert {**line, "split": 0} == pytest.approx({**alone, "split": 0}, rel=1e-3)


def test_processes_with_other_data_or_a_wrong_name_end_together(pair):
    ended, _ = pair
    messages = {"data": "requests of the evaluation tasks", "unknown": "Unknown evaluation task 'wrong'"}
    for what, message in messages.items():
        assert [process.returncode for process in ended[what]] == [2, 2], ended[what]
        assert all(message in process.stderr for process in ended[what]), ended[what]
