"""Metrics of weights, and checkpoints by time."""

import jax
import numpy as np
import pytest

from registry.resolve import resolve, resolve_recorded
from runners.main import main
from runners.session import Session
from runners.training import checkpoints
from runners.training.workdir import recorded
from testing import launches
from tests.support.run_folders import lines

FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--set=NUM_STEPS=12", "--set=EVAL_EVERY=100"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run with metrics of weights, a checkpoint after every update."""
    folder = tmp_path_factory.mktemp("weights")
    more = ["--set=WEIGHT_METRICS=true", "--set=LOG_EVERY=4", "--set=SAVE_EVERY=1", "--set=train.keep_last=20"]
    assert main([*FLAGS, *more, f"--workdir={folder}"]) == 0
    return folder


def test_norms_and_update_ratios_are_those_of_the_last_update(run):
    of_weights = lines(run, "weights")
    assert [line["step"] for line in of_weights] == [4, 8, 12]
    session = Session(resolve_recorded(recorded(str(run))))
    with session.placed():
        stored = checkpoints.Checkpoints(run, read_only=True)
        before, after = (stored.require(session.abstract.state, str(step))[0].variables["params"] for step in (7, 8))
    pairs = {
        checkpoints.path_name(path): (np.asarray(old, np.float64), np.asarray(new, np.float64))
        for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    }
    assert len(of_weights[1]) == 2 + 2 * len(pairs)
    for name, (old, new) in pairs.items():
        assert of_weights[1][f"norm/{name}"] == pytest.approx(np.linalg.norm(old), rel=1e-5)
        ratio = np.linalg.norm(new - old) / np.linalg.norm(old)
        assert of_weights[1][f"update_ratio/{name}"] == pytest.approx(ratio, rel=1e-3)


def test_the_report_shows_update_ratios(run):
    page = (run / "report.html").read_text()
    assert "Update ratios of weights" in page
    assert "update_ratio/stack/block/ffn/ffn_in_mf" in page


def test_metrics_of_weights_change_no_bits(run, tmp_path):
    assert main([*FLAGS, "--set=LOG_EVERY=4", f"--workdir={tmp_path}"]) == 0
    a, b = launches.last_state(run), launches.last_state(tmp_path)
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


def test_each_device_measures_its_part():
    """Of sharded weights only the sums of squares are exchanged."""
    session = Session(resolve("tiny.StdlibTiny", ["DEVICE_MESH_SHAPE=2,4"], smoke=True))
    params = session.abstract.state.variables["params"]
    with session.placed():
        program = session.functions.changes_of.lower(params, params).compile().as_text()
    assert "all-reduce" in program
    assert "all-gather" not in program


def test_master_weights_are_measured(tmp_path):
    """Updates below the rounding of bfloat16 weights change their float32 copies."""
    more = ["--set=WEIGHT_METRICS=true", "--set=LOG_EVERY=12", "--set=PARAM_DTYPE=bfloat16", "--set=LEARNING_RATE=1e-5"]
    assert main([*FLAGS, *more, "--set=MASTER_WEIGHTS=true", "--set=EMA_DECAY=0.9", f"--workdir={tmp_path}"]) == 0
    ratios = {n: x for line in lines(tmp_path, "weights") for n, x in line.items() if n.startswith("update")}
    assert 0 < ratios["update_ratio/stack/block/ffn/ffn_in_mf"] < 1e-4


@pytest.mark.parametrize(
    ("minutes", "wanted"),
    [
        (
            1e-6,
            "2 2,4 4,6 6,8 6,8,10 6,8,10,12 6,8,12,14 6,12,14,16 6,12,16,18 6,12,18,20",
        ),
        (1e6, "6 6,8 6,8,12 6,12,16 6,12,16,18 6,12,18,20"),
    ],
)
def test_temporary_checkpoints_make_room_for_later_ones(tmp_path, monkeypatch, minutes, wanted):
    """Every sixth step is a milestone, every eighth is saved, and two are kept; temporary ones after each window."""
    kept, save = [], checkpoints.Checkpoints.save

    def saved(self, step, *arguments, **options):
        save(self, step, *arguments, **options)
        self._manager.wait_until_finished()
        kept.append(self.steps())

    monkeypatch.setattr(checkpoints.Checkpoints, "save", saved)
    more = [f"--set=SAVE_MINUTES={minutes}", "--set=LOG_EVERY=2", "--set=SAVE_EVERY=8", "--set=KEEP_EVERY=6"]
    assert main([*FLAGS, *more, "--set=NUM_STEPS=20", f"--workdir={tmp_path}"]) == 0
    assert " ".join(",".join(map(str, steps)) for steps in kept) == wanted
