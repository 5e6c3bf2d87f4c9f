"""What every entry must keep, generated: a new entry gets these tests without a line."""

import itertools
import json
import re
from typing import Any

import jax
import numpy as np
import pytest

from registry import index
from registry.checks import check
from registry.experiment import Experiment
from registry.records.snapshot import snapshot, weight_summary
from registry.resolve import find, resolve
from registry.tool import golden, totals
from runners.compiled_functions import Updates
from runners.session import Session
from tests.support.programs import compiled_anew

ENTRIES = sorted(index.entries())
FAMILIES = [next(group) for _, group in itertools.groupby(ENTRIES, lambda name: name.partition(".")[0])]
ONE, MANY = {2: "1,1", 3: "1,1,1"}, {2: "2,4", 3: "2,2,2"}  # by the number of mesh axes
FLOAT = re.compile(r"-?\d+(?:\.\d+(?:e[+-]\d+)?|e[+-]\d+)")
CONSTANT = re.compile(r"dense<[^<>]*> : tensor<[a-z]\w*>|(?<!\w)-?\d+\.\d+(e[+-]\d+)?")  # not inside tables in hex


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_equals_its_golden_file_and_passes_its_check(name):
    entry, small = resolve(name), resolve(name, smoke=True)
    row = golden.compare(entry)
    assert row["ok"], row["reason"]
    check(entry)
    one = dict.fromkeys(small.MESH_AXES, 1)  # a small experiment folds its mesh onto the devices there are
    rows = [{(r["path"], r["role"], r["spec"]) for r in weight_summary(e, one)["weights"]} for e in (entry, small)]
    assert rows[0] == rows[1], "Smoke() keeps every row of the weight table"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_entry_of_each_family_trains_alike_on_one_and_eight_devices(name, trained):
    assert_trains_alike(name, trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_every_smoke_variant_trains_alike_on_one_and_eight_devices(name, trained):
    """Entries whose small forms are one program, apart from scalar constants, are trained once."""
    assert_trains_alike(name, trained)


@pytest.fixture(scope="module")
def trained() -> set:
    """Programs that have passed."""
    return set()


def assert_trains_alike(name: str, trained: set) -> None:
    experiment = resolve(name, smoke=True)
    axes, described = len(experiment.MESH_AXES), description(experiment)
    if described in trained:
        return
    session, step = small_step(name, MANY[axes])
    initial = [(row.path, row.shape, CONSTANT.sub("", str(row.init))) for row in session.task.weight_table()]
    program = (type(session.train.input), str(initial), CONSTANT.sub("constant", step.as_text()))
    trained.add(described)
    if program in trained:
        return
    alone, lowered = small_step(name, ONE[axes])
    one = train(alone, 12, lowered)
    with compiled_anew():
        many = train(session, 12, step)
    np.testing.assert_allclose(one[:6], many[:6], rtol=2e-4)
    np.testing.assert_allclose(one, many, rtol=1e-2, err_msg="rounding grows from step to step")
    assert np.mean(one[-3:]) < np.mean(one[:3])
    trained.add(program)


def description(experiment: Experiment) -> str:
    """The experiment without scalar constants, apart from 0 and 1, which may leave out a part of the program.

    It costs less than lowering the update, and equal ones have one program.
    """
    found = snapshot(experiment, dict.fromkeys(experiment.MESH_AXES, 1))
    weights = [(row["path"], row["shape"], row["spec"], row["slot_spec"]) for row in found["weights"]]
    constant = lambda match: match[0] if float(match[0]) in (0, 1) else "constant"
    return f"{FLOAT.sub(constant, str(found['config']))} {weights}"


def small_step(name: str, shape: str) -> tuple[Session, Any]:
    """The session of an entry's small form on this mesh, and its lowered update."""
    experiment = resolve(name, [f"DEVICE_MESH_SHAPE={shape}", "LOG_EVERY=1"], smoke=True)
    session = Session(experiment, jax.devices()[: experiment.num_devices])
    with session.placed():
        batch, _ = next(session.host_batches.iterate(session.train.input))
        return session, session.functions.lower_step(batch, session.seed)


def train(session: Session, count: int, step: Any = None) -> list[float]:
    """Losses of the first updates; `step` is the lowered update, where there is one."""
    with session.placed():
        batches = session.host_batches.iterate(session.train.input)
        updates, state, losses = Updates(session.functions), session.functions.init(), []
        compiled = {step.args_info[0][1].inputs.shape: step.compile()} if step else {}
        for _ in range(count):
            batch, _ = next(batches)
            update = compiled.get(batch.inputs.shape) or updates.of(batch)
            state = update(state, batch, session.seed)
            losses.append(float(state.sums.loss / state.sums.weight))
    return losses


def test_golden_files_have_entries():
    assert sorted(path.stem for path in golden.FOLDER.glob("*.json")) == ENTRIES


def test_a_change_shows_in_the_golden_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    monkeypatch.setattr(totals, "FILE", tmp_path / "totals")
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
