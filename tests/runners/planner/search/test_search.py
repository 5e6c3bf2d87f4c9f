"""--search: output, resuming, programs compiled once, classes written; on stated plans, without compilation."""

import dataclasses
import json
import re
import sys

import pytest

from layers.errors import UsageError
from registry.experiment import REGISTRY, Experiment, cls_key
from registry.records.snapshot import placed_task
from registry.resolve import resolve
from runners.machine.chips import CHIPS
from runners.planner.machine import Machine
from runners.planner.programs.compilation import Lowered, Trace
from runners.planner.search import plans
from runners.planner.search.search import Search, search

MACHINE = Machine(chip=CHIPS["v3"], virtual_devices=2)


@pytest.fixture(scope="module")
def experiment():
    return resolve("DenseLm8B2x2", smoke=True)


class Text:
    """A lowered program of a stated text."""

    def __init__(self, text):
        self.text = text

    def as_text(self):
        return self.text


def trace_of(session, machine, step):
    """A trace without products."""
    return Trace(traced=None, flops=0, attention=())


def lowered_of(session, machine, trace):
    return Lowered(program=Text(program_of(session)), trace=trace)


class Placed:
    """What a search asks of a session, without its checks."""

    def __init__(self, experiment: Experiment, devices):
        self.experiment, self.name = experiment, cls_key(type(experiment))
        self.mesh_shape = experiment.mesh_shape(len(devices))
        self.task, self.table = placed_task(experiment, self.mesh_shape)


def program_of(session):
    """Three policies with one program, as in a stack of blocks without products."""
    remat = session.experiment.REMAT.partition("_")[0].replace("dots", "none")
    return f"{remat} {dict(session.mesh_shape)} {session.experiment.NUM_HEADS}"


def plan_of(session, **figures):
    """A plan whose step time is longer on meshes with more devices on the axis 'data'."""
    slow = session.mesh_shape["data"] + (session.experiment.REMAT == "full")
    bounds = {"compute_seconds": float(slow), "links_data_seconds": 0.25}
    return {
        "experiment": session.name,
        "overrides": list(session.experiment.overrides),
        "fits": True,
        "memory_bytes_per_device": {"peak": 1_717_986_918},
        "capacity_bytes_per_device": 16 * 2**30,
        "roofline": bounds,
        "roofline_step_seconds": float(slow),
        "roofline_is_estimate": True,
        "roofline_tokens_per_second": 1e6 / slow,
        "roofline_mfu": 0.5 / slow,
        "compile_seconds": 1.0,
    } | figures


@pytest.fixture
def compiled(monkeypatch):
    """Stated plans in place of compilation; returns the overrides of the compiled sessions."""
    found = []

    def cost(session, machine, step, lowered):
        found.append(tuple(session.experiment.overrides[-2:]))
        return plan_of(session)

    monkeypatch.setattr(plans, "Session", Placed)
    monkeypatch.setattr(plans, "trace_step", trace_of)
    monkeypatch.setattr(plans, "lower_step", lowered_of)
    monkeypatch.setattr(plans, "cost", cost)
    return found


def test_the_fastest_one_is_printed_as_sets(experiment, tmp_path, capsys, compiled):
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh,remat")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "Fastest plan that fits: --set=DEVICE_MESH_SHAPE=1,2 --set=REMAT=none"
    steps = [float(row) for row in re.findall(r"yes +\S+ \S+ +~([\d.e-]+) s", out.rpartition("mesh")[2])]
    assert steps == sorted(steps)
    assert "Step times are estimates: " in " ".join(out.split())


def test_equal_programs_are_compiled_once(experiment, tmp_path, capsys, compiled):
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh,remat", exhaustive=True)) == 0
    assert len(compiled) == len(set(compiled)) == 2 * 5, "dots and dots_without_batch have programs of other policies"
    lines = [json.loads(line) for line in (tmp_path / "layouts.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 7
    assert len({line["program"] for line in lines}) == 2 * 5
    twins = [line for line in lines if "REMAT=dots" in line["overrides"]]
    assert all("compile_seconds" not in line and line["fits"] for line in twins)
    assert "14 cases: 14 planned; 10 programs compiled now; 4 of them" in " ".join(capsys.readouterr().out.split())


def test_a_killed_search_resumes_without_compiling_again(experiment, tmp_path, capsys, compiled, monkeypatch):
    how, file = Search(over="mesh,remat", exhaustive=True), tmp_path / "layouts.jsonl"
    assert search(experiment, tmp_path, MACHINE, how=how) == 0
    shown, lines = capsys.readouterr().out, file.read_text().splitlines()
    file.write_text("\n".join([*lines[:6], lines[6][:30]]))  # killed while writing
    first = len(compiled)
    assert search(experiment, tmp_path, MACHINE, how=how) == 0
    assert len(compiled) == first + 6, "the programs of the last eight cases, two of which have those of others"
    table = lambda text: text[text.index(" mesh ") : text.index("Step times")]
    assert table(capsys.readouterr().out) == table(shown)
    before = file.read_text()
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh,remat")) == 0
    assert len(compiled) == first + 6, "a search with bounds takes the plans of an exhaustive one"
    assert '"part": "bounds"' in file.read_text()[len(before) :]
    monkeypatch.setattr(plans, "trace_step", lambda *_: pytest.fail("bounds are stored, too"))
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh,remat")) == 0


@pytest.mark.parametrize(
    "other",
    [
        {"machine": dataclasses.replace(MACHINE, chip=CHIPS["v4"])},
        {"sets": ["NUM_HEADS=4"]},
        {"sets": ["DEVICE_ORDER=row_major"]},
    ],
)
def test_results_of_others_are_ignored(tmp_path, compiled, other):
    sets = other.get("sets", [])
    search(resolve("DenseLm8B2x2", smoke=True), tmp_path, MACHINE, how=Search(over="remat"))
    first = len(compiled)
    experiment = resolve("DenseLm8B2x2", sets, smoke=True)
    search(experiment, tmp_path, other.get("machine", MACHINE), how=Search(over="remat"))
    assert len(compiled) > first


def test_nothing_fits_before_compilation(experiment, tmp_path, capsys, compiled):
    tiny = dataclasses.replace(MACHINE, chip=dataclasses.replace(CHIPS["v3"], hbm_bytes=2**10))
    assert search(experiment, tmp_path, tiny, how=Search(over="mesh")) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "No case fits. The closest is --set=DEVICE_MESH_SHAPE=" in out
    assert "weights and optimizer take" in out
    assert "of 1 KiB" in out
    assert compiled == []


def test_nothing_fits_after_compilation(experiment, tmp_path, capsys, compiled, monkeypatch):
    peaks = lambda session: {"peak": 2**35 - session.mesh_shape["data"] * 2**30}
    monkeypatch.setattr(
        plans, "cost", lambda session, *_: plan_of(session, fits=False, memory_bytes_per_device=peaks(session))
    )
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh")) == 1
    closest = "The closest is --set=DEVICE_MESH_SHAPE=2,1: it needs 30 GiB of 16 GiB."
    assert closest in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("width", [80, 120])
def test_reasons_of_cases_that_fail_are_printed(experiment, tmp_path, capsys, compiled, monkeypatch, width):
    reason = "gshard.MoeLm2048x619B: 2048 experts along 'data' do not divide expert_in_emf " * 2

    def cost(session, *_):
        if session.mesh_shape["data"] == 2:
            raise UsageError(reason)
        return plan_of(session)

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(plans, "cost", cost)
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh,remat", exhaustive=True)) == 0
    out = capsys.readouterr().out
    text = " ".join(out.rpartition(" mesh ")[2].split())
    assert reason.strip() in text or (f"{reason[:30]}" in text and "…" in text)
    assert "dots_without_batch" in text
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= width


def test_without_a_chip(experiment, tmp_path):
    with pytest.raises(UsageError, match=r"--search compares with a chip's memory and speed. Name a chip with --chip"):
        search(experiment, tmp_path / "none", Machine())
    assert not (tmp_path / "none").exists()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The name of a module that tests write, forgotten after them."""
    monkeypatch.syspath_prepend(tmp_path)
    yield "found_by_search"
    sys.modules.pop("found_by_search", None)
    for key in [key for key in REGISTRY if key.startswith("found_by_search.")]:
        del REGISTRY[key]


def test_the_class_of_the_fastest_one(tmp_path, capsys, compiled, written):
    experiment = resolve("tiny.StdlibTiny", ["BATCH_SIZE=8", "DEVICE_MESH_SHAPE=2,1"])
    file = tmp_path / f"{written}.py"
    how = Search(over="mesh,remat", write=f"{file}:Fast")
    assert search(experiment, tmp_path / "plans", MACHINE, how=how) == 0
    assert f"Written: {file}" in capsys.readouterr().out
    found = resolve(f"{written}.Fast")
    knobs = found.knobs()
    assert [knobs[name] for name in ("DEVICE_MESH_SHAPE", "REMAT", "BATCH_SIZE")] == [(1, 2), "none", 8]
    assert type(found).__mro__[1].__name__ == "StdlibTiny"
    before = file.read_text()
    with pytest.raises(UsageError, match=r"would change an existing file. Choose another name"):
        search(experiment, tmp_path / "plans", MACHINE, how=how)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("found", "--write must be FILE.py or FILE.py:Class"),
        ("layers.py:A", "has the name of one of Vortaro's own packages"),
        ("found.py:a b", "is not of the form module.Name"),
    ],
)
def test_bad_files_are_refused(tmp_path, monkeypatch, write, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        search(resolve("tiny.StdlibTiny"), tmp_path / "plans", MACHINE, how=Search(write=write))
    assert not (tmp_path / "plans").exists()


def test_a_small_form_is_not_written(experiment, tmp_path):
    with pytest.raises(UsageError, match="--write cannot be combined with --smoke"):
        search(experiment, tmp_path, MACHINE, how=Search(write="found.py"))


def test_a_compiled_case_is_traced_once(experiment, tmp_path, compiled, monkeypatch):
    traced = []

    def trace(session, machine, step):
        traced.append(tuple(session.experiment.overrides[-2:]))
        return trace_of(session, machine, step)

    monkeypatch.setattr(plans, "trace_step", trace)
    assert search(experiment, tmp_path, MACHINE, how=Search(over="mesh,remat")) == 0
    assert set(compiled) <= set(traced)
    assert len(traced) == len(set(traced))
