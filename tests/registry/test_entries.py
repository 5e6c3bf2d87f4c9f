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
from runners.planner.lowering import check_lowering
from runners.planner.small_form import COMPILER_OPTIONS, SmallPlan, program_plan, small_form, small_plan
from runners.session import Session
from tasks.train_step import TrainState
from tests.support.programs import compiled_anew

ENTRIES = sorted(index.entries())
FAMILIES = [next(group) for _, group in itertools.groupby(ENTRIES, lambda name: name.partition(".")[0])]
TEMPLATES = {
    next(b for b in type(resolve(n)).__mro__ if b.__module__.startswith("registry.templates")): n
    for n in reversed(FAMILIES)
}
OTHERS = [name for name in ENTRIES if name not in FAMILIES]
LAST = [list(group)[-1] for _, group in itertools.groupby(OTHERS, lambda name: name.partition(".")[0])]
FLOAT = re.compile(r"-?\d+(?:\.\d+(?:e[+-]\d+)?|e[+-]\d+)")
CONSTANT = re.compile(r"dense<[^<>]*> : tensor<[a-z]\w*>|(?<!\w)-?\d+\.\d+(e[+-]\d+)?")  # not inside tables in hex
PLANS: dict[str, SmallPlan] = {}  # of small forms, by `description`
TRAINED: set[Any] = set()  # descriptions and programs of small forms that have passed


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_equals_its_golden_file_and_passes_its_check(name):
    entry, small = resolve(name), resolve(name, smoke=True)
    row = golden.compare(entry, sections=golden.RECORD)
    assert row["ok"], row["reason"]
    check(entry)
    one = dict.fromkeys(small.MESH_AXES, 1)  # a small experiment folds its mesh onto the devices there are
    rows = [{(r["path"], r["role"], r["spec"]) for r in weight_summary(e, one)["weights"]} for e in (entry, small)]
    assert rows[0] == rows[1], "Smoke() keeps every row of the weight table"


@pytest.mark.parametrize("name", sorted(TEMPLATES.values()))
def test_the_first_entry_of_each_template_trains_alike_on_one_and_eight_devices(name):
    assert_trains_alike(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST)
def test_the_last_entry_of_each_family_trains_alike_on_one_and_eight_devices(name):
    """Entries whose small forms are one program, apart from scalar constants, are trained once."""
    assert_trains_alike(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_entry_of_each_family_has_its_golden_plan(name):
    assert_has_its_golden_plan(name)


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_entry_has_its_golden_plan(name):
    """Small forms that are one program, apart from scalar constants, are compiled once."""
    assert_has_its_golden_plan(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES + LAST)
def test_updates_of_each_family_are_lowered_for_tpus_and_gpus(name):
    entry = resolve(name)
    check_lowering(entry, check(entry))


def assert_trains_alike(name: str) -> None:
    small = small_form(resolve(name))
    described = description(small)
    if described in TRAINED:
        return
    session, traced = small_step(small)
    step = traced.lower()
    starts = [(row.path, row.shape, CONSTANT.sub("", str(row.init))) for row in session.task.weight_table()]
    program = (type(session.train.input), str(starts), CONSTANT.sub("constant", step.as_text()))
    TRAINED.add(described)
    if program in TRAINED:
        return
    alone, traced_alone = small_step(one_device(name))
    with alone.placed():
        initial = jax.device_get(alone.functions.init())
    one, _ = train(alone, 12, traced_alone.lower(), initial)
    with compiled_anew():
        many, compiled = train(session, 12, step, initial)
    PLANS[described] = program_plan(session, traced, compiled)
    np.testing.assert_allclose(one[:6], many[:6], rtol=2e-4)
    np.testing.assert_allclose(one, many, rtol=1e-2, err_msg="rounding grows from step to step")
    assert np.mean(one[-3:]) < np.mean(one[:3])
    TRAINED.add(program)


def assert_has_its_golden_plan(name: str) -> None:
    entry = resolve(name)
    described = description(small_form(entry))
    if described not in PLANS:
        PLANS[described] = small_plan(entry)
    row = golden.compare(entry, sections=[golden.PLAN], plan=PLANS[described])
    assert row["ok"], row["reason"]
    if row["reason"]:
        pytest.skip(row["reason"])


def description(experiment: Experiment) -> str:
    """The small form without scalar constants, apart from 0 and 1, which may leave out a part of the program.

    It costs less than lowering the update, and equal ones have one program.
    """
    found = snapshot(experiment, dict.fromkeys(experiment.MESH_AXES, 1))
    weights = [(row["path"], row["shape"], row["spec"], row["slot_spec"]) for row in found["weights"]]
    constant = lambda match: match[0] if float(match[0]) in (0, 1) else "constant"
    return f"{FLOAT.sub(constant, str(found['config']))} {weights}"


def one_device(name: str) -> Experiment:
    return resolve(name, [f"DEVICE_MESH_SHAPE={','.join('1' for _ in resolve(name).MESH_AXES)}"], smoke=True)


def small_step(experiment: Experiment) -> tuple[Session, Any]:
    """The session of a small form on its devices, and its traced update."""
    session = Session(experiment, jax.devices()[: experiment.num_devices])
    with session.placed():
        return session, session.functions.trace_step(session.abstract.batch, session.abstract.seed)


def train(session: Session, count: int, step: Any, initial: TrainState | None = None) -> tuple[list[float], Any]:
    """Losses of the first updates, and the compiled update for full-length rows.

    Args:
      session: what trains.
      count: number of updates.
      step: the update for full-length rows, lowered.
      initial: the state before them; by default of this session.
    """
    with session.placed():
        batches, updates = session.host_batches.iterate(session.train.input), Updates(session.functions)
        compiled, losses = step.compile(COMPILER_OPTIONS), []
        shardings = session.abstract.state_shardings
        state = session.functions.init() if initial is None else jax.device_put(initial, shardings)
        full, loss, weight = step.args_info[0][1].inputs.shape, 0.0, 0.0
        for _ in range(count):
            batch, _ = next(batches)
            state = (compiled if batch.inputs.shape == full else updates.of(batch))(state, batch, session.seed)
            before, (loss, weight) = (loss, weight), (float(state.sums.loss), float(state.sums.weight))
            before = before if weight > before[1] else (0.0, 0.0)  # sums restart after LOG_EVERY updates
            losses.append((loss - before[0]) / (weight - before[1]))
    return losses, compiled


def test_golden_files_have_entries():
    stems = sorted(path.stem for path in golden.FOLDER.glob("*.json"))
    assert stems == sorted([*ENTRIES, *(f"{name}.plan" for name in ENTRIES)])


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
