"""The verbs of run folders: runs, compare, lineage, rerun."""

import math
import os
import shutil
import subprocess
import sys

import pytest
from scipy import stats

from registry.runs.comparison import interval, verdict
from registry.runs.table import statistics
from tests.conftest import ROOT
from tests.support.registry_commands import data, registry
from tests.support.run_folders import CODE, STARTED, lines_of, record_of, write_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Five runs: two learning rates with two seeds each, and one of another batch size that ends earlier."""
    monkeypatch.chdir(tmp_path)
    for rate, losses in (("0.1", (2.0, 2.2)), ("0.2", (3.0, 3.4))):
        for seed, loss in enumerate(losses):
            knobs = {"LEARNING_RATE": rate, "SEED": str(seed), "BATCH_SIZE": "8", "NORM": "'rms'"}
            write_run(tmp_path / f"runs/lr{rate}-{seed}", record_of(knobs), lines_of({50: loss + 1, 100: loss}))
    knobs = {"LEARNING_RATE": "0.1", "SEED": "0", "BATCH_SIZE": "16", "NORM": "'rms'"}
    write_run(tmp_path / "runs/wide", record_of(knobs), lines_of({50: 2.5, 80: 1.9}, tokens=20, rate=1.0))
    return tmp_path


def test_runs(runs, capsys):
    code, rows = data(capsys, "runs")
    assert (code, [row["run"] for row in rows]) == (
        0,
        [f"runs/{n}" for n in ("lr0.1-0", "lr0.1-1", "lr0.2-0", "lr0.2-1", "wide")],
    )
    first = rows[0]
    assert first["knobs"] == {"LEARNING_RATE": 0.1, "SEED": 0, "BATCH_SIZE": 8}, "exactly the knobs that differ"
    assert (first["state"], first["step"], first["steps"], first["seconds"]) == ("finished", 100, 100, 120.0)
    assert (first["tokens"], first["flops"], first["train_loss"], first["best_loss"]) == (1000, 10_000, 3.0, 2.0)
    assert first["validation"]["loss"] == 2.0
    _, out, _ = registry(capsys, "runs")
    assert "LEARNING_RATE   SEED   BATCH_SIZE" in " ".join(out.splitlines())
    assert "NORM" not in out
    assert "2 min" in out


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("BATCH_SIZE==16 and loss<2", ["wide"]),
        ("loss<=2.2", ["lr0.1-0", "lr0.1-1", "wide"]),
        ("NORM=='rms' and not (SEED==0)", ["lr0.1-1", "lr0.2-1"]),
        ("state!='finished'", []),
        ("no_such<1 or step<100", ["wide"]),
        ("steps==none", []),
    ],
)
def test_where(runs, capsys, condition, names):
    if "no_such" in condition:
        code, out, err = registry(capsys, "runs", "--where", condition)
        assert (code, out) == (2, "")
        assert err.startswith("registry: Unknown name 'no_such' in --where. ")
        return
    code, rows = data(capsys, "runs", "--where", condition)
    assert [row["run"] for row in rows] == [f"runs/{name}" for name in names]
    assert code == (0 if names else 1)


def test_sort(runs, capsys):
    names = lambda by: [row["run"].removeprefix("runs/") for row in data(capsys, "runs", f"--sort={by}")[1]]
    assert names("loss") == ["wide", "lr0.1-0", "lr0.1-1", "lr0.2-0", "lr0.2-1"]
    assert names("-tokens")[0] == "wide"
    assert names("run")[0] == "lr0.1-0"


def test_group(runs, capsys):
    _, rows = data(capsys, "runs", "--group=SEED")
    assert [row["n"] for row in rows] == [2, 2, 1]
    assert rows[0]["knobs"] == {"LEARNING_RATE": 0.1, "BATCH_SIZE": 8}
    assert rows[0]["loss"] == {"mean": pytest.approx(2.1), "deviation": pytest.approx(0.2 / math.sqrt(2)), "n": 2}
    assert rows[2]["loss"] == {"mean": 1.9, "deviation": None, "n": 1}
    assert "2.100 ± 0.14" in registry(capsys, "runs", "--group=SEED")[1]
    _, rows = data(capsys, "runs", "--group=SEED,LEARNING_RATE")
    assert [row["n"] for row in rows] == [4, 1]


def test_a_config_field_that_an_override_sets_separates_runs(runs, capsys):
    knobs = {"LEARNING_RATE": "0.1", "SEED": "7", "BATCH_SIZE": "8", "NORM": "'rms'"}
    record = {**record_of(knobs), "overrides": ["task.optimizer.b2=0.9"]}
    write_run(runs / "runs/other_b2", record, lines_of({50: 3.0, 100: 8.0}))
    _, rows = data(capsys, "runs", "runs/lr0.1-*", "runs/other_b2", "--group=SEED")
    assert [(row["n"], row["knobs"]) for row in rows] == [(2, {}), (1, {"task.optimizer.b2": 0.9})]
    _, found = data(capsys, "compare", "runs/lr0.1-*", "runs/other_b2")
    assert [len(row["runs"]) for row in found["results"]["rows"]] == [2, 1]


def test_runs_of_other_code_or_data_are_separate(runs, capsys):
    knobs = {"LEARNING_RATE": "0.1", "SEED": "7", "BATCH_SIZE": "8", "NORM": "'rms'"}
    for name, change in (
        ("code", {"code": {"vortaro": {**CODE, "digest": "f" * 12}}}),
        ("data", {"data": {"x": {"is": "y", "fingerprint": "1"}}}),
    ):
        record = record_of(knobs)
        record["starts"][-1] |= change
        write_run(runs / f"runs/{name}", record, lines_of({100: 2.0}))
    _, rows = data(capsys, "runs", "runs/lr0.1-*", "runs/code", "runs/data", "--group=SEED")
    assert [row["n"] for row in rows] == [2, 1, 1]
    assert "ffffffffffff" in registry(capsys, "runs", "--group=SEED")[1]


def test_two_runs_of_one_seed_are_one_sample(runs, capsys):
    for name in ("lr0.1-0", "lr0.2-0"):
        shutil.copytree(runs / "runs" / name, runs / "again" / name)
    (row,) = data(capsys, "runs", "runs/lr0.1-0", "again/lr0.1-0", "--group=SEED")[1]
    assert (row["n"], len(row["runs"]), row["loss"]["deviation"]) == (1, 2, None)
    _, found = data(capsys, "compare", "runs/lr0.[12]-0", "again/*")
    assert [row["final"]["n"] for row in found["results"]["rows"]] == [1, 1]
    assert found["results"]["verdicts"]["step"]["is_certain"] is None


def test_equal_results_have_no_better_one(runs, capsys):
    knobs = {"LEARNING_RATE": "0.1", "SEED": "0", "BATCH_SIZE": "8", "NORM": "'layer'"}
    write_run(runs / "same", record_of(knobs), lines_of({50: 3.0, 100: 2.0}))
    assert "At equal steps, a and b are equal." in registry(capsys, "compare", "runs/lr0.1-0", "same")[1]


def test_scalars_of_tasks(runs, capsys):
    for name, value in (("a", 0.5), ("b", 0.25)):
        lines = [*lines_of({100: 2.0}), {"step": 100, "split": "evals", "arc/acc,none": value, "arc/odd": value}]
        write_run(runs / "tasks" / name, record_of({"SEED": "0", "NORM": f"'{name}'"}), lines)
    names = lambda *flags: [row["run"] for row in data(capsys, "runs", "tasks", *flags)[1]]
    assert names("--sort=arc/acc,none") == ["tasks/b", "tasks/a"]
    assert names("--where", 'metric("arc/acc,none")>0.3') == ["tasks/a"]
    _, found = data(capsys, "compare", "tasks/*", "--metric=arc/acc,none")
    assert found["results"]["verdicts"]["step"]["best"] == ["tasks/a"]
    _, out, _ = registry(capsys, "compare", "tasks/*", "--metric=arc/odd")
    assert "Whether more of arc/odd is better is not known." in out
    assert "better than" not in out


def test_broken_runs_are_listed(runs, capsys):
    (runs / "runs/half/checkpoints").mkdir(parents=True)
    code, out, _ = registry(capsys, "runs")
    assert code == 0
    assert "broken: Run folder 'runs/half' has no experiment.json" in out
    _, rows = data(capsys, "runs")
    assert rows[-1]["state"] == "broken"


def test_two_hundred_runs_are_read_without_jax(tmp_path):
    for number in range(200):
        write_run(tmp_path / f"runs/{number:03}", record_of({"SEED": str(number)}), lines_of({100: 2.0}))
    code = "import sys; from registry.tool.command_line import main; main(['runs']); print('jax' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert sum(line.startswith(" runs/") for line in done.stdout.splitlines()) == 200


def test_statistics_and_intervals():
    assert statistics([1.0, 3.0]) == {"mean": 2.0, "deviation": pytest.approx(math.sqrt(2)), "n": 2}
    # Student's t for 95% and 2 degrees of freedom is 4.30265; the deviation of 1, 2, 3 is 1.
    found = interval([1.0, 2.0, 3.0])
    assert found == {"deviation": 1.0} | {"mean": 2.0, "half_width": pytest.approx(4.302653 / math.sqrt(3)), "n": 3}
    assert interval([5.0])["half_width"] is None


def test_compare(runs, capsys):
    code, found = data(capsys, "compare", "runs/lr0.1-0", "runs/wide")
    assert code == 1
    assert found["knobs"] == {"BATCH_SIZE": ["8", "16"]}
    assert found["config"] == {"task.batch_size": ["8", "16"]}
    assert found["results"]["equal"] == {"step": 80, "tokens": 1000, "flops": 8000, "seconds": 50.0}
    a, b = found["results"]["rows"]
    at = lambda row: {axis: figure["mean"] for axis, figure in row["at"].items()}
    assert at(a) == pytest.approx({"step": 2.4, "tokens": 2.0, "flops": 2.4, "seconds": 2.0})
    assert at(b) == pytest.approx({"step": 1.9, "tokens": 2.5, "flops": 1.9, "seconds": 2.5})
    assert (a["final"]["mean"], a["best"]["mean"], b["best"]["mean"]) == (2.0, 2.0, 1.9)
    _, out, _ = registry(capsys, "compare", "runs/lr0.1-0", "runs/wide")
    assert "At equal steps, b is better than a by 20.8%." in out
    assert "At equal tokens, a is better than b by 20.0%." in out


def test_compare_over_seeds(runs, capsys):
    _, found = data(capsys, "compare", "runs/lr*")
    assert [row["runs"] for row in found["results"]["rows"]] == [
        ["runs/lr0.1-0", "runs/lr0.1-1"],
        ["runs/lr0.2-0", "runs/lr0.2-1"],
    ]
    # Two values: the half width is t (12.7062) * deviation / sqrt(2).
    final = found["results"]["rows"][0]["final"]
    assert (final["mean"], final["half_width"]) == (pytest.approx(2.1), pytest.approx(1.27062, rel=1e-4))
    _, out, _ = registry(capsys, "compare", "runs/lr*")
    assert "a b are better than c d by 34.4% (not significant at 5%)." in out


@pytest.mark.parametrize("shift", [0.7, 1.5, 4.0])
def test_significance_is_that_of_welchs_test(shift):
    one, other = [2.0, 2.2, 2.7], [2.1 + shift, 2.9 + shift]
    rows = [{"runs": [name], "at": {"step": interval(values)}} for name, values in (("a", one), ("b", other))]
    p = stats.ttest_ind(one, other, equal_var=False).pvalue
    assert verdict(rows, "step", higher=False)["is_certain"] == (p < 0.05)
    assert verdict(rows, "step", higher=False)["best"] == ["a"]
    assert verdict(rows, "step", higher=True)["best"] == ["b"]


def test_compare_by_another_metric(runs, capsys):
    _, found = data(capsys, "compare", "runs/lr0.1-0", "runs/lr0.2-0", "--metric=accuracy")
    assert found["results"]["higher_is_better"] is True
    code, _, err = registry(capsys, "compare", "runs/lr0.1-0", "runs/wide", "--metric=accurac")
    assert (code, err) == (
        2,
        "registry: --metric=accurac is not measured in 'runs/lr0.1-0'. Did you mean 'accuracy'?\n",
    )


def test_equal_runs(runs, capsys):
    write_run(runs / "again", record_of({"LEARNING_RATE": "0.1", "SEED": "0", "BATCH_SIZE": "8", "NORM": "'rms'"}))
    code, out, _ = registry(capsys, "compare", "runs/lr0.1-0", "again")
    assert code == 0
    assert "No difference.\nNo scalar of validation or training is measured in all runs.\n" in out


def test_lineage(runs, capsys):
    parent = {"workdir": "runs/lr0.1-0", "step": 50, "experiment": "tiny.StdlibTiny", "optimizer": False}
    write_run(runs / "child", record_of({"NUM_LAYERS": "4"}, parent=parent))
    write_run(runs / "grandchild", record_of({"NUM_LAYERS": "8"}, parent={**parent, "workdir": "child"}))
    _, rows = data(capsys, "lineage", "grandchild")
    assert [row["run"] for row in rows] == ["grandchild", "child", "runs/lr0.1-0"]
    assert [row["by"] for row in rows] == [None, "warm start, grown from 4 to 8 layers", "warm start"]
    write_run(runs / "imported", record_of({}, parent={"file": "gone/model", "format": "llama"}, starts=[]))
    _, out, _ = registry(capsys, "lineage", "imported")
    assert (
        out == "imported (tiny.StdlibTiny)\n  from gone/model: import of llama weights. It does not exist any more.\n"
    )
    assert "Its weights began with initial values." in registry(capsys, "lineage", "runs/wide")[1]


def test_a_parent_with_a_relative_path_is_found_from_another_folder(runs, capsys, monkeypatch):
    parent = {"workdir": "runs/wide", "step": 50, "experiment": "tiny.StdlibTiny"}
    write_run(runs / "child", record_of({}, parent=parent))
    monkeypatch.chdir("/")
    _, rows = data(capsys, "lineage", str(runs / "child"))
    assert [(row["run"], row["found"]) for row in rows] == [(str(runs / "child"), True), ("runs/wide", True)]


def test_no_run_meets_the_condition(runs, capsys):
    for more in ("--sort=loss", "--group=SEED"):
        code, out, _ = registry(capsys, "runs", "--where", "loss<0", more)
        assert (code, out) == (1, "No run meets the condition of --where.\n")


def test_lineage_of_run_folders_in_a_circle_ends(runs, capsys):
    parent = {"step": 50, "experiment": "tiny.StdlibTiny"}
    write_run(runs / "a", record_of({}, parent={**parent, "workdir": "b"}))
    write_run(runs / "b", record_of({}, parent={**parent, "workdir": "a"}))
    assert len(data(capsys, "lineage", "a")[1]) == 100


def test_rerun(runs, capsys):
    code, found = data(capsys, "rerun", "runs/wide")
    assert code == 1
    assert found["commands"] == ["python -m runners.main --exp=tiny.StdlibTiny --workdir=runs/wide-again"]
    (missing,) = (text for text in found["missing"] if text.startswith("The code of vortaro"))
    assert "then 0.1.0, commit cccccccccccc, digest 0123456789ab" in missing
    assert missing.endswith("Check out commit cccccccccccc.")


def test_rerun_of_a_run_that_was_continued(runs, capsys):
    command = ["python", "-m", "runners.main", "--exp=tiny.StdlibTiny", "--workdir", "b", "--set=NOTE=a b"]
    starts = [
        {"started": STARTED, "step": 17, "command": each, "code": {"vortaro": CODE}}
        for each in (command, command, [*command, "--set=NUM_STEPS=200"])
    ]
    write_run(runs / "b", {**record_of({}, starts=starts), "command": command})
    _, found = data(capsys, "rerun", "b")
    line = "python -m runners.main --exp=tiny.StdlibTiny --workdir b-again '--set=NOTE=a b'"
    assert found["commands"] == [line, f"{line} --set=NUM_STEPS=200"]
    assert found["missing"][0] == "Start 2 was stopped at step 17, and the next had other flags. Stop it at step 17."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["runs", "nowhere"],
            "No run folder matches 'nowhere' (none has experiment.json). Give the --workdir of a run.",
        ),
        (["runs", "--sort=los"], "Unknown name 'los' in --sort. Did you mean 'loss'"),
        (["runs", "--group=SEDE"], "Unknown knob 'SEDE' in --group. Did you mean 'SEED'?"),
        (["runs", "--where", "loss<'a'"], "orders values of two kinds"),
        (["runs", "--smoke"], "--smoke has no effect on runs. Remove it."),
        (["list", "--sort=loss"], "--sort has no effect on list. Remove it."),
        (["compare", "runs/wide"], "compare takes two or more run folders (got runs/wide). Give another one."),
        (["compare", "runs/wide", "runs/lr0.1-0", "--metric=split"], "--metric=split is not measured in"),
        (["lineage"], "lineage takes one run folder (got 0 names)."),
        (["lineage", "nowhere"], "Run folder 'nowhere' does not exist. "),
        (["rerun", "nowhere"], "Run folder 'nowhere' does not exist. "),
    ],
)
def test_bad_requests(runs, capsys, arguments, message):
    code, out, err = registry(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
