"""--mode=study: checks of all cases, runs of their own, halving, resuming, importance, the page."""

import json
import math

import pytest

from layers.errors import UsageError
from registry.resolve import resolve
from runners.main import main, parse
from runners.modes.study import Options
from runners.options import from_flags
from runners.studies.cases import checked_cases, importance
from runners.studies.runs import RunOptions, Runs
from runners.studies.study import run_of

FLAGS = ["--exp=mu.MuTiny", "--smoke", "--mode=study"]


def flags(folder, study, *more):
    return [*FLAGS, f"--set=STUDY=Study({study})", f"--workdir={folder}", *more]


def test_importance_is_the_variance_between_the_values_of_a_setting():
    settings = [{"a": a, "b": b, "c": a * 10 + b} for a in (0, 1) for b in (0, 1, 2)]
    shares = importance(settings, [5 * each["a"] + each["b"] for each in settings])
    total = 6.25 + 2 / 3
    assert shares["a"] == pytest.approx(6.25 / total)
    assert shares["b"] == pytest.approx(2 / 3 / total)
    assert shares["c"] == pytest.approx(6.25 / total, rel=0.1), "numbers of which each case has another: thirds"
    assert importance(settings, [1.0] * 6) == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert importance(settings[:1], [1.0]) == {}


def test_all_bad_cases_are_listed_before_the_first_one_is_trained(tmp_path, capsys):
    values = 'values={"NUM_HEADS": (8, 7), "LEARNING_RATE": (0.01, -1.0), "NUM_LAYRES": (1,)}'
    assert main(flags(tmp_path / "new", values)) == 2
    printed = capsys.readouterr()
    assert "4 of 4 cases are invalid" in printed.err
    assert printed.out.count("Did you mean 'NUM_LAYERS'") == 4
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exp=mu.MuTiny", "--smoke", "--mode=study"], "--mode=study needs the knob STUDY of mu.MuTiny"),
        ([*FLAGS, "--set=STUDY=Study(values={'BETA1': (0.9,)})", "--workers=-1"], "--workers must be at least 0"),
        ([*FLAGS, "--set=STUDY=Study(values={'BETA1': (0.9,)})", "--run=1"], "--run must be 0 to 0 for rung 0"),
        ([*FLAGS, "--set=STUDY=Study(values={'BETA1': (0.9,)})", "--run=0", "--rung=1"], "--rung must be 0 to 0"),
        ([*FLAGS, "--set=STUDY=Study(how='halvig', values={'BETA1': (0.9,)})"], "Did you mean 'halving'"),
    ],
)
def test_refusals(arguments, message, tmp_path, capsys):
    assert main([*arguments, f"--workdir={tmp_path}/new"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.fixture
def trained(monkeypatch):
    """Replaces training by a formula of the settings; returns what was trained: (settings, step)."""
    done, values = [], {}

    def train_one(self, case, seed, end):
        done.append((case.number, end))
        rate = case.settings["LEARNING_RATE"]
        loss = None if rate > 1 else abs(math.log10(rate) + 2) + 100 / end + 0.01 * seed
        values[str(case.folder(self.folder, seed)), end] = loss
        if loss is None:
            self.failed[case.folder(self.folder, seed)] = "vortaro: The loss of step 3 is not finite."
        return 0.0

    monkeypatch.setattr(Runs, "_train_one", train_one)
    found = lambda self, case, seed, end: values.get((str(case.folder(self.folder, seed)), end))
    monkeypatch.setattr(Runs, "loss_of", found)
    unfinished = lambda self, case, seed, end: (str(case.folder(self.folder, seed)), end) not in values
    monkeypatch.setattr(Runs, "is_unfinished", unfinished)
    return done


def test_halving_continues_with_the_best(tmp_path, trained, capsys):
    rates = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 1e-5, 1e-6)
    study = f"how='halving', values={{'LEARNING_RATE': {rates}}}, keep=3, rungs=3"
    assert main(flags(tmp_path, study, "--set=NUM_STEPS=90")) == 0
    assert [step for _, step in trained] == [10] * 9 + [30] * 3 + [90]
    assert trained[-1] == (2, 90), "the best of nine"
    summary = json.loads((tmp_path / "study.json").read_text())
    assert summary["order"][:3] == [2, 3, 1]
    assert summary["updates"] == 6 * 10 + 2 * 30 + 90
    assert summary["all_updates"] == 9 * 90
    page = (tmp_path / "study.html").read_text()
    assert "Importance" in page
    assert "LEARNING_RATE" in page
    count = len(trained)
    assert main(flags(tmp_path, study, "--set=NUM_STEPS=90")) == 0
    assert len(trained) == count, "nothing is trained again"
    assert "9 of 9 runs have been trained before" in capsys.readouterr().out


def test_seeds_and_failures(tmp_path, trained, capsys):
    study = "values={'LEARNING_RATE': (0.01, 0.1, 10.0)}, seeds=2"
    assert main(flags(tmp_path, study)) == 1
    summary = json.loads((tmp_path / "study.json").read_text())
    assert summary["order"] == [0, 1, 2]
    assert summary["cases"][0]["losses"] == {"30": pytest.approx(100 / 30 + 0.005)}
    assert summary["cases"][2]["losses"] == {"30": None}
    assert len(summary["cases"][2]["errors"]) == 2
    assert "Case 2 failed: vortaro: The loss of step 3 is not finite." in capsys.readouterr().out


def test_runs_of_later_rungs_are_numbered_by_the_losses_of_the_rung_before(tmp_path, trained):
    study = "how='halving', values={'LEARNING_RATE': (0.0001, 0.01, 0.1, 0.001)}, keep=2, rungs=2, seeds=2"
    experiment = resolve("mu.MuTiny", [f"STUDY=Study({study})"], smoke=True)
    runs = Runs(tmp_path, RunOptions())
    first = [run_of(experiment, runs, number=number, rung=0) for number in range(8)]
    assert [(case.number, seed, end) for case, seed, end in first] == [(n // 2, n % 2, 15) for n in range(8)]
    for case, seed, end in first[:-1]:
        runs._train_one(case, seed, end)
    with pytest.raises(UsageError, match="1 runs of rung 0 are not finished, so the cases of rung 1 are unknown"):
        run_of(experiment, runs, number=0, rung=1)
    runs._train_one(*first[-1])
    later = [run_of(experiment, runs, number=number, rung=1) for number in range(4)]
    assert [(case.number, seed, end) for case, seed, end in later] == [(1, 0, 30), (1, 1, 30), (2, 0, 30), (2, 1, 30)]
    with pytest.raises(UsageError, match=r"--run must be 0 to 3 for rung 1 of this study \(got 4\)"):
        run_of(experiment, runs, number=4, rung=1)


def test_cases_that_differ_in_their_length_are_trained_to_their_own_end(tmp_path, trained):
    assert main(flags(tmp_path, "values={'NUM_STEPS': (20, 40), 'LEARNING_RATE': (0.01,)}")) == 0
    assert trained == [(0, 20), (1, 40)]
    assert json.loads((tmp_path / "study.json").read_text())["order"] == [1, 0]


def test_comparing_trains_nothing(tmp_path, trained, capsys):
    assert main(flags(tmp_path, "values={'LEARNING_RATE': (0.01,)}", "--workers=0")) == 1
    assert not trained
    assert "Case 0 failed: It has no validation loss at step 30." in capsys.readouterr().out


def test_a_run_of_other_settings_is_not_reused(tmp_path):
    case = checked_cases(resolve("mu.MuTiny", smoke=True), {"000": {"LEARNING_RATE": 0.01}}, (0,))[0]
    folder = case.folder(tmp_path, 0)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 30, "split": "validation", "loss": 2.0}\n')
    overrides = ["NUM_STEPS=30", "STUDY=none", "LEARNING_RATE=0.01", "SEED=0"]
    ended = {"at": "2026-11-29T00:00:00+00:00", "step": 10, "reason": "SIGTERM"}
    record = {"experiment": "mu.MuTiny", "smoke": True, "knobs": {}, "overrides": overrides}
    record["starts"] = [{"started": "2026-11-29T00:00:00+00:00", "step": 0, "ended": ended}]
    (folder / "experiment.json").write_text(json.dumps(record))
    runs = lambda **given: Runs(tmp_path, RunOptions(**{"exp": "mu.MuTiny", "smoke": True} | given))
    assert runs(sets=("NUM_STEPS=30",)).loss_of(case, 0, 30) == 2.0
    assert runs(sets=("NUM_STEPS=30",)).loss_of(case, 0, 20) is None
    assert runs(sets=("NUM_STEPS=30",)).is_unfinished(case, 0, 60), "stopped by SIGTERM"
    for other in ({"sets": ("NUM_STEPS=40",)}, {}, {"exp": "mu.MuSmall", "sets": ("NUM_STEPS=30",)}):
        assert runs(**other).loss_of(case, 0, 30) is None


def test_several_processes_train_one_run_only(tmp_path, capsys):
    position = ["--coordinator=localhost:1", "--num_processes=2", "--process_id=1", "--join_timeout=1"]
    options = from_flags(Options, parse([*FLAGS, f"--workdir={tmp_path}", *position]))
    assert not options.several_processes
    assert not options.saves_on_sigterm
    one = from_flags(Options, parse([*FLAGS, f"--workdir={tmp_path}", "--run=1"]))
    assert one.several_processes
    assert one.saves_on_sigterm


@pytest.mark.slow
def test_cases_are_runs_of_the_runner(tmp_path, capsys):
    study = "how='halving', values={'LEARNING_RATE': (0.0001, 0.01, 0.1)}, keep=3, rungs=2"
    assert main(flags(tmp_path, study, "--set=EVAL_EVERY=100", "--run=2")) == 0, "one task of an array of jobs"
    assert "step     10 validation" in capsys.readouterr().out
    assert main(flags(tmp_path, study, "--set=EVAL_EVERY=100", "--workers=2")) == 0
    out = capsys.readouterr().out
    assert "1 of 3 runs have been trained before" in out
    assert "step 10: loss" in out
    summary = json.loads((tmp_path / "study.json").read_text())
    best = summary["order"][0]
    assert list(summary["cases"][best]["losses"]) == ["10", "30"]
    assert main(["--exp=mu.MuTiny", "--smoke", "--mode=validation", f"--workdir={tmp_path}/cases/{best:03}",
                 f"--set=LEARNING_RATE={summary['cases'][best]['settings']['LEARNING_RATE']}", "--set=SEED=0",
                 "--set=EVAL_EVERY=100"]) == 0  # fmt: skip
    assert f"loss {summary['cases'][best]['losses']['30']:.4f}" in capsys.readouterr().out
    assert main(flags(tmp_path, study, "--set=EVAL_EVERY=100")) == 0
    out = capsys.readouterr().out
    assert "LEARNING_RATE=0.01 " not in out, "nothing is trained again"
    assert "3 of 3 runs have been trained before" in out
