"""--mode=evals on task files with local data: results, files, and one sentence for each wrong request."""

import json
import math
import shutil
import sys

import pytest

from tests.support import evals
from tests.support.plugins import commands

pytest.importorskip("lm_eval", reason="needs the extra evals: pip install -c constraints.txt -e '.[evals]'")

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return evals.task_files(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    knobs = ["NUM_STEPS=3", "EVAL_EVERY=none", "EVAL_ROWS=8", "DEVICE_MESH_SHAPE=2,1", "DTYPE=float32"]
    flags = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", *(f"--set={knob}" for knob in knobs)]
    done = commands.inside(folder, "runners.main", f"--workdir={folder}", *flags, devices=2)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def evaluated(run, *flags):
    return commands.inside(run, "runners.main", f"--workdir={run}", "--mode=evals", *flags, devices=2, **OFFLINE)


def lines(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == "evals"]


def test_every_kind_of_request(run, tasks):
    done = evaluated(run, f"--tasks={','.join(evals.NAMES)}", f"--task_path={tasks}", "--log_samples")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    texts = ("Scored 14 continuations in 1 batch of 1 shape.", "Scored 5 texts in ", "Continued 5 prompts in 1 batch")
    assert all(text in done.stdout for text in texts), done.stdout
    capitals, texts, answers = lines(run)
    assert {line["step"] for line in lines(run)} == {3}
    assert capitals["capitals/acc"] in (0, 0.2, 0.4, 0.6, 0.8, 1)
    assert {*capitals} >= {"capitals/acc_stderr", "capitals/acc_norm", "capitals/acc_norm_stderr"}
    assert (capitals["capitals/documents"], capitals["capitals/shots"]) == (5, 0)
    assert 4 < texts["texts/bits_per_byte"] < 12
    assert texts["texts/word_perplexity"] > math.exp(4)
    assert answers["answers/exact_match"] == 0
    row = next(line for line in done.stdout.splitlines() if line.startswith(" capitals   acc "))
    assert row.split() == ["capitals", "acc", f"{capitals['capitals/acc']:.4f}", *row.split()[3:]]
    page = (run / "report.html").read_text()
    assert "Evaluation tasks" in page
    assert ">word_perplexity</td>" in page
    [sample, *_] = map(json.loads, (run / "evals" / "00000003" / "answers.jsonl").read_text().splitlines())
    assert sample["doc"]["country"] == "France"
    assert sample["arguments"][0][0] == "France:"
    assert len(list((run / "evals" / "00000003").iterdir())) == 3


@pytest.mark.slow  # reads all task files of the harness
def test_groups_patterns_and_amounts(run, tasks):
    flags = [f"--task_path={tasks}", "--limit=3", "--num_fewshot=1", "--batch_tokens=64"]
    assert evaluated(run, "--tasks=all_of_them", *flags).returncode == 0
    [capitals, texts] = lines(run)
    assert (capitals["capitals/documents"], capitals["capitals/shots"]) == (3, 1)
    assert texts["texts/documents"] == 3
    assert evaluated(run, "--tasks=capita*", *flags).returncode == 0
    assert len(lines(run)) == 2, "the same results are not written twice"
    assert evaluated(run, "--tasks=capitals", f"--task_path={tasks}").returncode == 0
    assert len(lines(run)) == 3


@pytest.mark.slow
def test_results_do_not_depend_on_the_shapes_of_batches(run, tasks):
    for more in ([], ["--batch_tokens=32"]):
        assert evaluated(run, "--tasks=texts,answers", f"--task_path={tasks}", *more, "--log_samples").returncode == 0
    first, *others = lines(run)[::2]
    for other in others:
        assert other["texts/bits_per_byte"] == pytest.approx(first["texts/bits_per_byte"], rel=1e-6)


BAD = {
    "no tasks": ([], "--mode=evals needs tasks"),
    "unknown": (["--tasks=capitls"], "Unknown evaluation task 'capitls'. Did you mean 'capitals'"),
    "no folder": (["--tasks=capitals", "--task_path=nowhere"], "folder of task files 'nowhere' does not exist"),
    "limit": (["--tasks=capitals", "--limit=0"], "--limit must be at least 1 (got 0)"),
    "examples": (["--tasks=capitals", "--num_fewshot=-1"], "--num_fewshot must be at least 0 (got -1)"),
    "batch": (["--tasks=capitals", "--batch_tokens=0"], "--batch_tokens must be at least 1 (got 0)"),
    "checkpoint": (["--tasks=capitals", "--checkpoint=9"], "9"),
    "network": (["--tasks=arc_easy"], "The data of the evaluation task 'arc_easy' cannot be loaded"),
}
WRONG_FILES = {
    "template": ("{{country}}", "{{city.name}}", "task 'wrong' cannot be loaded: 'city' is undefined"),
    "data": ("capitals.jsonl", "missing.jsonl", "The data of the evaluation task 'wrong' cannot be loaded"),
    "kind": ("multiple_choice", "many_choice", "task 'wrong' cannot be loaded"),
}


# With all task files of the harness or all its metrics, which take seconds to load.
SLOW_FILES = {
    "yaml": ("[{metric: acc}", "[{metric: acc", "wrong.yaml' cannot be read"),
    "metric": ("metric: acc}", "metric: accc}", "task 'wrong' cannot be loaded: accc not found"),
}


def refused(done, message):
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("what", BAD)
def test_bad_requests(trained, tasks, what):
    flags, message = BAD[what]
    refused(evaluated(trained, f"--task_path={tasks}", *flags), message)


@pytest.mark.parametrize("what", [*WRONG_FILES, *(pytest.param(what, marks=pytest.mark.slow) for what in SLOW_FILES)])
def test_wrong_task_files(trained, tmp_path, what):
    old, new, message = (WRONG_FILES | SLOW_FILES)[what]
    folder = evals.task_files(tmp_path / "tasks")
    evals.wrong_file(folder, old, new)
    refused(evaluated(trained, "--tasks=wrong", f"--task_path={folder}"), message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('doc_to_choice: "{{choices}}"', 'doc_to_choice: "{{[country * (1 + 40 * (answer == 1))] * 2}}"', "at most 32"),
        ("{{country}}:", "{{country if answer == 0 else 1 / 0}}:", "task 'wrong' cannot build its requests: division"),
    ],
    ids=["long continuation", "template"],
)
def test_a_late_document_is_checked_before_training(tmp_path, old, new, message):
    """The first document is correct."""
    folder = evals.task_files(tmp_path / "tasks")
    evals.wrong_file(folder, old, new)
    knobs = ["EVAL_TASKS=wrong", f"EVAL_TASK_PATH={folder}"]
    flags = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", *(f"--set={knob}" for knob in knobs)]
    done = commands.inside(tmp_path, "runners.main", "--workdir=run", *flags, **OFFLINE)
    refused(done, message)
    assert "step" not in done.stdout


def test_a_task_that_generates_too_much(trained, tmp_path):
    folder = evals.task_files(tmp_path / "tasks")
    evals.wrong_file(folder, "max_gen_toks: 6", "max_gen_toks: 32", evals.ANSWERS)
    message = "max_gen_toks of the evaluation task 'wrong' must be below 32"
    refused(evaluated(trained, "--tasks=wrong", f"--task_path={folder}"), message)


def test_without_the_harness(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    refused(evaluated(trained, "--tasks=capitals"), "needs the package lm_eval. Run pip install")


def test_without_a_run(tmp_path):
    refused(evaluated(tmp_path, "--tasks=capitals", "--exp=tiny.StdlibTiny"), "no checkpoint")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        pytest.param(["EVAL_TASK_PATH=a"], "EVAL_TASK_PATH = 'a' has no effect", marks=pytest.mark.slow),
        (["EVAL_TASKS=capitals", "EVAL_FEWSHOT=-1"], "num_fewshot must be at least 0 (got -1)"),
        (["EVAL_TASKS=capitals", "DATA=synthetic"], "need a vocabulary of text (got the token ids"),
        (["EVAL_TASKS=capitals", "OBJECTIVE=masked"], "need a model with OBJECTIVE = causal (got masked)"),
        (["EVAL_TASKS=capitls"], "Unknown evaluation task 'capitls'"),
    ],
)
def test_training_with_wrong_tasks_does_not_start(tmp_path, tasks, knobs, message):
    knobs = [*knobs, *([f"EVAL_TASK_PATH={tasks}"] if "capitls" in knobs[0] else [])]
    flags = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", *(f"--set={knob}" for knob in knobs)]
    refused(commands.inside(tmp_path, "runners.main", "--workdir=run", *flags, **OFFLINE), message)
