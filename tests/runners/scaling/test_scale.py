"""--mode=scale: the ladder's runs, the law, what is predicted and advised, the page, refusals."""

import functools
import json
import math

import pytest

from registry.resolve import resolve
from runners.main import main
from runners.scaling.ladder import size_of
from runners.scaling.law import Law
from runners.studies.runs import Runs

FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", "--mode=scale"]
LAW = Law(E=1.2, A=20.0, B=50.0, alpha=0.3, beta=0.4)
BUDGETS = "--budgets=3e9,6e9,1.2e10"


def flags(folder, *more):
    return [*FLAGS, "--widths=32,48,64", f"--workdir={folder}", *more]


@functools.cache
def size(width):
    """The model of a width."""
    return size_of(resolve("tiny.StdlibTiny", smoke=True), width)


@pytest.fixture
def trained(monkeypatch):
    """Replaces training by a law of weights and tokens; returns the names of what was trained."""
    done, losses = [], {}

    def train_one(self, case, seed, end):
        done.append(case.name)
        model = size(int(case.name.partition("_")[0].removeprefix("width-")))
        loss = LAW.loss(model.parameters, model.tokens(case.steps))
        rate = case.settings.get("LEARNING_RATE", 0.01)
        losses[case.name, seed] = None if rate > 1 else loss + abs(math.log10(rate) + 2)
        if rate > 1:
            self.failed[case.folder(self.folder, seed)] = "vortaro: The loss of step 3 is not finite."
        return 0.0

    monkeypatch.setattr(Runs, "_train_one", train_one)
    monkeypatch.setattr(Runs, "is_unfinished", lambda self, case, seed, end: (case.name, seed) not in losses)
    monkeypatch.setattr(Runs, "loss_of", lambda self, case, seed, end: losses.get((case.name, seed)))
    return done


def test_a_ladder_recovers_a_law_and_predicts_larger_runs(tmp_path, trained, capsys):
    more = [BUDGETS, "--held_out=128@3e10", "--advise=1e11,1e4"]
    assert main(flags(tmp_path, *more)) == 0
    assert len(trained) == 3 * 3 + 1
    assert trained[0] == "width-32_flops-3e+09"
    summary = json.loads((tmp_path / "scale.json").read_text())
    assert summary["law"]["alpha"]["value"] == pytest.approx(LAW.alpha, rel=0.02)
    assert summary["law"]["beta"]["value"] == pytest.approx(LAW.beta, rel=0.02)
    held_out = summary["rows"][-1]
    assert held_out["held_out"]
    assert abs(held_out["error"]) < 0.001
    for row in summary["rows"]:
        assert row["flops"] == pytest.approx(row["budget"], rel=0.06), "as many updates as the budget pays"
        assert row["flops"] == row["flops_per_token"] * row["tokens"]
    best, none = sorted(summary["advice"], key=lambda each: -each["budget"])
    assert none["width"] is None
    for width in (best["width"] - 16, best["width"] + 16):
        assert LAW.loss(size(width).parameters, size(width).tokens(size(width).steps(1e11))) >= best["loss"] - 1e-6
    out = capsys.readouterr().out
    assert "Held out: width 128" in out
    assert "none: too few FLOPs" in out
    page = (tmp_path / "scale.html").read_text()
    assert "isoflops" in page
    assert "Best width of a budget" in page
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_another_budget_trains_only_what_is_new(tmp_path, trained, capsys):
    assert main(flags(tmp_path, "--budgets=3e9,6e9")) == 1, "six runs"
    assert "The runs do not determine a law" in capsys.readouterr().out
    before = len(trained)
    assert main(flags(tmp_path, BUDGETS)) == 0
    assert len(trained) == before + 3
    assert "6 of 9 runs have been trained before" in capsys.readouterr().out


def test_rates_and_seeds(tmp_path, trained, capsys):
    more = [BUDGETS, "--rates=0.01,10", "--seeds=2"]
    assert main(flags(tmp_path, *more)) == 1, "a rate diverges"
    assert len(trained) == 3 * 3 * 2 * 2
    summary = json.loads((tmp_path / "scale.json").read_text())
    assert {row["rate"] for row in summary["rows"]} == {0.01}
    assert all(len(row["losses"]) == 2 for row in summary["rows"])
    assert len(summary["errors"]) == 3 * 3 * 2
    out = capsys.readouterr().out
    assert "The loss of step 3 is not finite." in out
    assert "The best rate of 9 of 9 rungs is at the edge" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--mode=scale needs --budgets"),
        (["--budgets=1e10,x"], "--budgets must be a list of positive numbers like 1e12,1e13 (got 1e10,x)"),
        (["--budgets=1e6"], "is too small for width 32 of tiny.StdlibTiny, which would have 0 updates"),
        ([BUDGETS, "--held_out=128"], "--held_out must be WIDTH@FLOPS, like 512@1e14 (got 128)"),
        ([BUDGETS, "--held_out=128@1e13,1e14"], "--held_out must be WIDTH@FLOPS"),
        ([BUDGETS, "--held_out=32@3e9"], "Two runs of the ladder are the same: width-32_flops-3e+09"),
        ([BUDGETS, "--set=DECAY_STEPS=30"], "--set=DECAY_STEPS has no effect in this mode"),
        ([BUDGETS, "--set=LEARNING_RATE=0.1", "--rates=0.1,0.2"], "--set=LEARNING_RATE has no effect in this mode"),
        ([BUDGETS, "--held_out=@1e12"], "--held_out must be WIDTH@FLOPS, like 512@1e14 (got @1e12)"),
        ([BUDGETS, "--set=NUM_STEPS=20"], "--set=NUM_STEPS has no effect in this mode"),
        ([BUDGETS, "--set=PHASES=(Phase(),Phase(steps=2))"], "PHASES cannot be scaled"),
        ([BUDGETS, "--widths=32,33"], "Width 33: "),
        ([BUDGETS, "--run=9"], "--run must be 0 to 8 for this ladder (got 9)"),
        ([BUDGETS, "--workers=-1"], "--workers must be at least 0 (got -1)"),
        ([BUDGETS, "--rates=0.001,-1"], "--rates must be positive numbers"),
    ],
)
def test_refusals(arguments, message, tmp_path, capsys):
    assert main(flags(tmp_path / "new", *arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_sizes_are_those_of_the_entries():
    size = size_of(resolve("tiny.StdlibTiny"), 256)
    assert (size.tokens_per_update, size.settings["MODEL_DIM"]) == (4 * 256, 256)
    # 12 M^2 weights in each of 4 layers, and tables and head of 256 bytes.
    assert size.parameters == 4 * 12 * 256**2 + 2 * 256 * 256 + 9 * 256
    # 6 per weight of a product; attention: 2 products of M columns for 256 positions, 3 times.
    assert size.flops_per_token == 6 * (4 * 12 * 256**2 + 256 * 256) + 4 * 12 * 256 * 256
