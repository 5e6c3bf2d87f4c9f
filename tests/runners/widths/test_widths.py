"""Modes over widths: the coordinate check passes under muP, fails on each error that it is for, and sweeps resume."""

import itertools
import json

import fiddle as fdl
import jax
import numpy as np
import pytest

from layers.weights.initializers import Normal
from registry.resolve import find, resolve
from runners.main import main
from runners.reports.results import experiment_hash
from runners.session import Session
from runners.widths.coord_check import CoordOptions, _activations, coord_check
from runners.widths.sweep import RESULTS, _Runs, _show, refine
from runners.widths.widths import of_width
from tasks.parametrization import Parametrization

WIDTHS = (64, 128, 256)
ENDS = (64, 256)  # enough to see an error


def checked(tmp_path, name, widths=WIDTHS, smoke=False, **knobs):
    """Exit code, and the slopes that left their bands, by activation without its dimensions."""
    sets = [f"{knob}={value}" for knob, value in knobs.items()]
    code = coord_check(resolve(name, sets, smoke=smoke), tmp_path, CoordOptions(widths=widths))
    record = json.loads((tmp_path / "coord_check.json").read_text())
    assert record["passed"] == (code == 0) == all(gate["ok"] for gate in record["gates"])
    assert (tmp_path / "coord_check.png").stat().st_size > 10_000
    page = (tmp_path / "coord_check.html").read_text()
    assert f"<dd>{'passed' if code == 0 else 'failed'}</dd>" in page
    assert page.count('class="plot') == 5
    return code, record


def outside(record):
    """What left its band: statistic, name without layer and dimensions."""
    names = lambda gate: gate["activation"].rpartition(" ")[2].rpartition("/")[2]
    return {(gate["statistic"], names(gate)) for gate in record["gates"] if not gate["ok"]}


def test_mup_is_flat_and_the_standard_parametrization_grows(tmp_path, capsys):
    code, record = checked(tmp_path, "mu.MuTiny")
    assert code == 0
    assert "Passed: all 34 slopes are in their bands." in capsys.readouterr().out
    flat = {(g["activation"], g["statistic"], g["step"]): g["slope"] for g in record["gates"]}
    code, record = checked(tmp_path, "mu.MuTiny", PARAMETRIZATION="standard")
    assert code == 1
    assert "Failed:" in capsys.readouterr().out
    grown = {(g["activation"], g["statistic"], g["step"]): g["slope"] for g in record["gates"]}
    hidden = [key for key in flat if key[1] == "change" and key[0].startswith("layer")]
    assert len(hidden) == 14
    assert max(abs(flat[key]) for key in hidden) <= 0.35
    assert min(grown[key] for key in hidden) >= 0.5
    # They differ only in the changes of hidden activations.
    assert outside(record) == {("change", key[0].rpartition(" ")[2].rpartition("/")[2]) for key in hidden}


HIDDEN = {("change", f"{name}") for name in ("query_bsnd", "key_bskd", "value_bskd", "mixer_out", "ffn_out")}
HIDDEN |= {("change", "residual_bsm")}


def wrong_rate(role, factor):
    """A parametrization whose rates of one role are off by a power of m."""
    right = Parametrization.rate

    def rate(self, of, fan_in, relative=None):
        return right(self, of, fan_in, relative) * (self.multiple**factor if of == role else 1)

    return rate


@pytest.mark.parametrize(
    ("role", "factor", "caught"),
    [
        ("hidden", 1, HIDDEN),  # rates of hidden weights not divided by m
        ("output", 1, {("change", "logits_by_head_bsv")}),  # the head's not divided by it
        ("embedding", -1, {("change", "embedded")}),  # the embedding's divided by it
    ],
)
def test_a_wrong_rate_is_caught_where_it_acts(tmp_path, monkeypatch, role, factor, caught):
    monkeypatch.setattr(Parametrization, "rate", wrong_rate(role, factor))
    code, record = checked(tmp_path, "mu.MuTiny", ENDS)
    assert code == 1
    assert outside(record) == caught
    steepest = max((gate for gate in record["gates"] if not gate["ok"]), key=lambda gate: abs(gate["slope"]))
    assert 0.7 <= steepest["slope"] * factor <= 1.8


def test_wrong_initial_values_are_caught_before_the_first_update(tmp_path):
    """Fixed deviations, under rates that are right."""
    cls = find("mu.MuTiny")

    class Wrong(cls):
        """Deviations of one width at every width."""

        def initializer(self, scale=1.0, **kind):
            config = super().initializer(scale, **kind)
            config.scale = scale * (self.MODEL_DIM / 64) ** 0.5
            return config

    code = coord_check(Wrong(), tmp_path, CoordOptions(widths=ENDS))
    assert code == 1
    caught = outside(json.loads((tmp_path / "coord_check.json").read_text()))
    assert {("size", name) for name in ("query_bsnd", "key_bskd", "value_bskd", "hidden_bsf", "ffn_out")} <= caught


@pytest.mark.parametrize(
    ("part", "field", "value", "caught"),
    [
        ("embedding", "initializer", lambda width: fdl.Config(Normal, stddev=width**-0.5), "embedded"),
        ("head", "initializer", lambda width: fdl.Config(Normal, stddev=0.02), "logits_bsv"),
        ("stack.block.mixer", "scale", lambda width: width**0.5 / 64, "scores"),
    ],
)
def test_wrong_ends_and_scores_are_caught(tmp_path, part, field, value, caught):
    class Wrong(find("mu.MuTiny")):
        """One part that does not follow the width as it should."""

        def model(self):
            config = place = super().model()
            for name in part.split("."):
                place = getattr(place, name)
            setattr(place, field, value(self.MODEL_DIM))
            return config

    assert coord_check(Wrong(), tmp_path, CoordOptions(widths=ENDS)) == 1
    assert ("size", caught) in outside(json.loads((tmp_path / "coord_check.json").read_text()))


def test_what_is_not_finite_does_not_pass(tmp_path, capsys):
    code, record = checked(tmp_path, "mu.MuTiny", ENDS, LEARNING_RATE=1e30)
    assert code == 1
    assert "NaN" not in (tmp_path / "coord_check.json").read_text()
    assert any(gate["slope"] is None and not gate["ok"] for gate in record["gates"])
    assert "Failed:" in capsys.readouterr().out


@pytest.mark.parametrize("choice", ["fan_in", "zero"])
def test_other_heads_are_held_to_what_they_should_be(tmp_path, choice):
    code, record = checked(tmp_path, "mu.MuTiny", ENDS, UNEMBEDDING_INIT=choice, QUERY_INIT="zero")
    assert code == 0
    logits = [gate for gate in record["gates"] if gate["activation"] == "logits_bsv" and gate["statistic"] == "size"]
    assert [(gate["low"], gate["high"]) for gate in logits] == ([] if choice == "zero" else [(-0.1, 0.1)])
    # With zero queries and a zero head activations after them are 0 and not judged.
    assert not [gate for gate in record["gates"] if "query" in gate["activation"] and gate["statistic"] == "size"]


@pytest.mark.parametrize(
    ("name", "widths", "smoke"),
    [
        pytest.param("mu.MuVQStdlib", (64, 256), False, marks=pytest.mark.slow),
        ("mu.MuDense8B", ENDS, True),  # whose moments Adafactor would not factorize below 128
        ("mu.MuStdlib", (64, 256), True),
    ],
)
def test_other_families_under_mup(tmp_path, name, widths, smoke):
    assert checked(tmp_path, name, widths, smoke, NUM_LAYERS=2)[0] == 0
    code, record = checked(tmp_path, name, widths, smoke, NUM_LAYERS=2, PARAMETRIZATION="standard")
    assert code == 1
    assert {statistic for statistic, _ in outside(record)} == {"change"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("mu.MuTiny", {}),
        ("tiny.StdlibTiny", {"PARAMETRIZATION": "mup", "BASE_WIDTH": 64}),
        ("mu.MuVQStdlib", {}),
    ],
)
def test_muon_under_mup(tmp_path, name, knobs):
    assert checked(tmp_path, name, ENDS, OPTIMIZER="muon", NUM_LAYERS=2, **knobs)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mix.VqMoeStdlib"])
def test_small_forms_with_vq_under_mup(tmp_path, name):
    """One head is noisy: its deviation is 0.76 HEAD_DIM^-1/2, hence the average of three seeds."""
    experiment = resolve(name, smoke=True)
    assert coord_check(experiment, tmp_path, CoordOptions(widths=WIDTHS, seeds=3)) == 0


def test_layers_of_a_pattern_are_numbered_as_in_the_model():
    knobs = ["NUM_LAYERS=5", "FFN=dense+experts", "MIXER=attention+static_sgu"]
    session = Session(resolve("tiny.StdlibTiny", knobs, smoke=True))
    with session.placed():
        batch = session.host_batches.put(session.train.input.batch(0))
        look = lambda variables: _activations(session.task, variables, variables, batch)
        seen = jax.eval_shape(look, session.abstract.state.variables)
    of_layers = {name.partition(" ")[2].partition(" ")[::2] for name in seen if name.startswith("layer ")}
    layers = {number: {name for of, name in of_layers if of == number} for number, _ in of_layers}
    assert layers.keys() == set("01234")
    assert layers["0"] == layers["2"] == layers["4"] != layers["1"] == layers["3"]
    assert "ffn/hidden_bsf" in layers["0"] - layers["1"]


def test_overrides_apply_at_every_width():
    made = of_width(resolve("mu.MuTiny", ["SEQ_LEN=16"]), 128, SEQ_LEN=32, BATCH_SIZE=4, NO_SUCH_KNOB=1)
    assert (made.MODEL_DIM, made.SEQ_LEN, made.BATCH_SIZE) == (128, 16, 4)


SWEEP = ["--exp=mu.MuTiny", "--smoke", "--mode=sweep", "--set=NUM_STEPS=6", "--set=LOG_EVERY=3"]


def test_a_sweep_equals_training_and_resumes(tmp_path, capsys):
    folder = tmp_path / "sweep"
    grid = ["--widths=64,128", "--rates=2^-6,2^-4", f"--workdir={folder}"]
    assert main([*SWEEP, *grid]) == 0
    out = capsys.readouterr().out
    assert "A best rate is at the edge of the grid" in out  # of two rates, one must
    lines = (folder / RESULTS).read_text().splitlines()
    assert len(lines) == 4
    found = {(line["width"], line["learning_rate"]): line for line in map(json.loads, lines)}
    # The same as a run of its own at that width and rate.
    run = tmp_path / "run"
    sets = ["--set=NUM_STEPS=6", "--set=LOG_EVERY=3", "--set=MODEL_DIM=128", "--set=LEARNING_RATE=0.0625"]
    assert main(["--exp=mu.MuTiny", "--smoke", f"--workdir={run}", "--no-tensorboard", *sets]) == 0
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line["loss"] for line in logged if line["split"] == "train"]
    np.testing.assert_allclose([loss for _, loss in found[128, 0.0625]["train"]], trained, rtol=1e-5)
    loss_of_run = [line["loss"] for line in logged if line["split"] == "validation"][-1]
    np.testing.assert_allclose(found[128, 0.0625]["loss"], loss_of_run, rtol=1e-5)
    # Killed while it wrote the last line: that case alone is run again; a new seed adds its own.
    (folder / RESULTS).write_text("\n".join([*lines[:-1], lines[-1][:40]]))
    capsys.readouterr()
    assert main([*SWEEP, *grid, "--seeds=2"]) == 0
    out = capsys.readouterr().out
    assert out.count("(from sweep.jsonl)") == 3
    again = [
        json.loads(line) for line in (folder / RESULTS).read_text().splitlines() if not line.endswith(lines[-1][:40])
    ]
    assert len(again) == 8
    assert {(line["width"], line["learning_rate"], line["seed"]) for line in again} == {
        (width, rate, seed) for width in (64, 128) for rate in (2**-6, 2**-4) for seed in (0, 1)
    }
    repeated = next(line for line in again if (line["width"], line["learning_rate"], line["seed"]) == (128, 2**-4, 0))
    assert repeated["loss"] == found[128, 2**-4]["loss"]
    assert len({line["loss"] for line in again}) == 8
    summary = json.loads((folder / "sweep.json").read_text())
    assert [row["width"] for row in summary["rows"]] == [64, 128]
    assert (folder / "sweep.png").stat().st_size > 10_000
    page = (folder / "sweep.html").read_text()
    assert page.count('class="plot') == 2
    assert f">{summary['rows'][0]['losses'][0]:.4f}" in page


def test_other_settings_are_other_cases():
    keys = [
        experiment_hash(resolve("mu.MuTiny", sets))
        for sets in ([], ["BETA2=0.99"], ["NUM_STEPS=201"], ["MODEL_DIM=128"], ["DEVICE_MESH_SHAPE=2,1"])
    ]
    assert len(set(keys)) == 4
    assert keys[4] == keys[0]  # the placement of weights is not part of it


def test_another_text_is_another_case(tmp_path):
    file = tmp_path / "text.txt"
    keys = []
    for text in ("abc" * 5000, "abd" * 5000):
        file.write_text(text)
        keys.append(_Runs(resolve("mu.MuTiny", [f"DATA_PATH={file}"])).key)
    same = _Runs(resolve("mu.MuTiny", [f"DATA_PATH={file}", "EVAL_EVERY=7", "SAVE_EVERY=9"])).key
    assert keys[0] != keys[1]
    assert same == keys[1]  # a sweep reads neither


def test_a_rate_that_diverges_is_a_result(tmp_path, capsys):
    sets = ["--set=task.optimizer.clipping.global_norm=none", "--set=OPTIMIZER=sgd", "--set=PARAMETRIZATION=standard"]
    assert main([*SWEEP, *sets, "--widths=64,128", "--rates=0.01,1e30", f"--workdir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "diverged" in out
    assert "edge of the grid" in out
    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert [row["losses"][1] for row in summary["rows"]] == [None, None]
    assert [row["best"] for row in summary["rows"]] == [0, 0]


def test_the_bottom_of_a_parabola():
    rates = (2**-3, 2**-2, 2**-1)
    losses = [(np.log2(rate) + 2.2) ** 2 for rate in rates]
    assert refine(rates, losses, 1) == pytest.approx(-2.2)
    assert refine(rates, losses, 0) is None
    assert refine(rates, [None, 1.0, 2.0], 1) is None


def test_figures_of_transfer_and_of_wider_is_better():
    """Statements of the docs about the committed sweeps, recomputed from the data of their figures."""
    from tests.conftest import ROOT

    mup, standard = (
        json.loads((ROOT / f"docs/measurements/sweep_{name}.json").read_text()) for name in ("mup", "standard")
    )
    for summary in (mup, standard):
        assert (summary["widths"], summary["seeds"]) == ([64, 128, 256], 3)
        np.testing.assert_allclose(np.diff(np.log2(summary["rates"])), 1)
    best = [row["best"] for row in mup["rows"]]
    assert max(best) - min(best) <= 1
    assert abs(mup["drift_log2"]) <= 0.6
    best = [row["best"] for row in standard["rows"]]
    assert max(best) - min(best) >= 2
    assert standard["drift_log2"] <= -1.5
    # Wider is better throughout: at one rate, after the warm-up of 20 updates.
    rate = mup["rows"][0]["best"]
    curves = [[loss for step, loss in row["train"][rate] if step > 20] for row in mup["rows"]]
    for narrow, wide in itertools.pairwise(curves):
        assert all(w <= n + 0.01 for n, w in zip(narrow, wide, strict=True))
        assert np.mean(wide) < np.mean(narrow)


TUNED = [
    "--exp=mu.MuTiny",
    "--mode=sweep",
    "--workdir=sweep",
    "--widths=32,128",
    "--set=HEAD_DIM=16",
]
TUNED += ["--set=NUM_STEPS=100", "--set=WARMUP_STEPS=10", "--set=EVAL_ROWS=64", "--set=SEQ_LEN=32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "rates", "drift"), [("mup", "2^-8..2^-4", (-0.6, 0.6)), ("standard", "2^-9..2^-5", (-3.0, -1.5))]
)
def test_the_best_rate_of_a_narrow_model_is_that_of_a_wide_one(inside, tmp_path, rule, rates, drift):
    base = ["--set=BASE_WIDTH=32"] if rule == "mup" else []
    done = inside("runners.main", *TUNED, *base, f"--rates={rates}", f"--set=PARAMETRIZATION={rule}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    low, high = drift
    assert low <= summary["drift_log2"] <= high
    narrow, wide = summary["rows"]
    cells = abs(wide["best"] - narrow["best"])
    if rule == "standard":
        assert cells >= 2
        assert wide["regret"] > 0.05
        return
    assert cells <= 1
    assert wide["regret"] <= 0.05
    # Wider is better throughout, after the warm-up.
    curves = [[loss for step, loss in row["train"][narrow["best"]] if step > 10] for row in (narrow, wide)]
    assert all(w <= n + 0.01 for n, w in zip(*curves, strict=True))


@pytest.mark.parametrize("width", [80, 120])
def test_tables_of_sweeps_and_checks_keep_every_loss_at_a_width(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    rates = [2.0**power for power in range(-14, -4)]
    row = {"losses": [None, *(5 + rate for rate in rates[1:])], "best": 1, "refined": -12.51, "regret": 0.034}
    record = {"experiment": "gshard.DenseLm12kWide162BAdamBS25616x16", "smoke": True, "overrides": ["NUM_LAYERS=4"]}
    rows = [{**row, "width": size} for size in (128, 2048)]
    _show({**record, "rates": rates, "widths": [128, 2048], "rows": rows, "drift_log2": 0.0})
    out = capsys.readouterr().out
    text = " ".join(out.split())
    tables = out.partition("From width")[0]
    assert max(map(len, tables.splitlines())) <= width
    assert record["experiment"] in text
    for whole in ("2^-14", "2^-5", "parabola, log2", "regret at 128's best"):
        assert whole in text
    for value in ("diverged", "5.000*", *(f"{loss:.3f}" for loss in row["losses"][1:]), "-12.51", "0.034"):
        assert text.count(value) >= 2, value
