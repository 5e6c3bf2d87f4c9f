"""What every entry must keep, generated: a new entry gets these tests without a line."""

import json

import jax
import numpy as np
import pytest

from registry import golden, index
from registry.checks import check
from registry.resolve import find, resolve
from registry.snapshot import flat_config, snapshot
from runners.session import Session, Updates

ENTRIES = sorted(index.entries())


@pytest.mark.parametrize("name", ENTRIES)
def test_golden(name):
    row = golden.compare(resolve(name))
    assert row["ok"], row["reason"]


@pytest.mark.parametrize("name", ENTRIES)
def test_check(name):
    check(resolve(name))


@pytest.mark.parametrize("name", ENTRIES)
def test_smoke_has_the_same_table_rows(name):
    whole, small = resolve(name), resolve(name, smoke=True)
    one = dict.fromkeys(small.MESH_AXES, 1)  # a small experiment folds its mesh onto the devices there are
    rows = [{(r["path"], r["role"], r["spec"]) for r in snapshot(e, one)["weights"]} for e in (whole, small)]
    assert rows[0] == rows[1]


def small_forms() -> list[str]:
    """The first entry of each small form. Many presets of a family differ in size and length of training alone, and
    their small forms in nothing that twelve updates could show: such twins are trained once.
    """
    beyond = ("train.num_steps", "train.log_every", "train.eval_every", "train.save_every", "test.")
    decay = "task.optimizer.schedule.decay_steps"
    first: dict[tuple, str] = {}
    for name in ENTRIES:
        experiment = resolve(name, smoke=True)
        config = {k: v for k, v in flat_config(experiment).items() if not k.startswith(beyond) and k != decay}
        first.setdefault((experiment.MESH_AXES, *config.items()), name)
    return list(first.values())


@pytest.mark.parametrize("name", small_forms())
def test_smoke_trains_on_every_device_with_the_losses_of_one(name):
    losses = {}
    one, many = {2: ("1,1", "2,4"), 3: ("1,1,1", "2,2,2")}[len(resolve(name).MESH_AXES)]
    for shape in (one, many):
        experiment = resolve(name, [f"DEVICE_MESH_SHAPE={shape}", "LOG_EVERY=1"], smoke=True)
        count = int(np.prod(experiment.DEVICE_MESH_SHAPE))
        losses[shape] = train(Session(experiment, jax.devices()[:count]), 12)
    np.testing.assert_allclose(losses[one][:6], losses[many][:6], rtol=2e-4)
    np.testing.assert_allclose(losses[one], losses[many], rtol=1e-2, err_msg="rounding grows from step to step")
    assert np.mean(losses[one][-3:]) < np.mean(losses[one][:3])


def train(session: Session, steps: int) -> list[float]:
    with session.placed():
        batches = session.batches(session.train.input)
        updates, state, losses = Updates(session), session.init(), []
        for _ in range(steps):
            batch, _ = next(batches)
            state = updates.of(batch)(state, batch, session.seed)
            losses.append(float(state.sums.loss / state.sums.weight))
    return losses


def test_golden_files_have_entries():
    assert sorted(path.stem for path in golden.FOLDER.glob("*.json")) == ENTRIES


def test_a_change_shows_in_the_golden_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    assert "has no golden file" in golden.compare(resolve("StdlibTiny"))["reason"]
    golden.compare(resolve("StdlibTiny"), update=True)
    assert golden.compare(resolve("StdlibTiny"))["ok"]
    row = golden.compare(resolve("StdlibTiny", ["NUM_LAYERS=5"]))
    assert not row["ok"]
    assert "NUM_LAYERS" in row["reason"]
    stored = json.loads((tmp_path / "tiny.StdlibTiny.json").read_text())
    assert stored["totals"]["parameters"] == 853_120


def test_stated_sizes():
    assert snapshot(find("CharTiny")())["totals"]["parameters"] == 820_352
    assert snapshot(find("StdlibSmall")())["totals"]["parameters"] == 12 * 6 * 384**2 + 2 * 256 * 384 + 13 * 384
