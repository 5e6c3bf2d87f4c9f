"""Explained peaks: buffers that sum to the compiler's peak, with their layers, source lines and weights."""

import functools
import re

import jax
import pytest

from registry.resolve import resolve
from runners.planner.cost import cost
from runners.planner.explained import buffer_cells, sections
from runners.planner.explained import show as show_explained
from runners.planner.machine import Machine
from runners.planner.programs.buffers import Buffers, Definition, Fixed, Temporary
from runners.planner.programs.hlo_text import parse
from runners.planner.programs.metadata import PROJECT, Sources, argument, layer, layers_of
from runners.planner.programs.peaks import explain
from runners.session import Session

SLOW = ["gpt2.Gpt2Small", "mistral.Mixtral8x7B", "tiny.StdlibTiny"]


def explained_sum(plan):
    return sum(one["bytes"] for one in plan["peak_buffers"])


@functools.cache
def cpu_plan(name, step="train"):
    axes = len(resolve(name).MESH_AXES)
    experiment = resolve(name, ["DEVICE_MESH_SHAPE=2,4" + ",1" * (axes - 2)], smoke=True)
    return cost(Session(experiment, jax.devices()[:8]), Machine(), step, explained=True)


@pytest.mark.parametrize(
    "name", ["gshard.DenseLm8B2x2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_buffers_sum_to_the_peak_on_virtual_devices(name):
    plan = cpu_plan(name)
    peak = plan["memory_bytes_per_device"]["peak"]
    assert explained_sum(plan) == pytest.approx(peak, rel=0.05)
    shown = plan["peak_buffers"]
    assert len(shown) == 11
    assert [one["bytes"] for one in shown[:10]] == sorted((one["bytes"] for one in shown[:10]), reverse=True)
    assert any(re.fullmatch(r"(layers|tasks)/.*\.py:\d+", one["source"]) for one in shown)
    assert any(one["layer"].startswith("stack") for one in shown)
    schedule = plan["peak_schedule"]
    totals = [sum(each) for each in zip(*schedule["bytes"].values(), strict=True)]
    assert len(totals) == len(schedule["places"]) <= 200
    assert max(totals) == totals[schedule["peak"]]
    assert schedule["bytes"]["weights"][0] == plan["memory_bytes_per_device"]["weights"]


@pytest.mark.slow
def test_arguments_name_their_rows():
    plan = cpu_plan("gshard.DenseLm8B2x2", step="decode")
    weights = {one["row"] for one in plan["peak_buffers"] if one["what"] == "weight"}
    assert "params/embedding/embedding_vm" in weights
    assert explained_sum(plan) == pytest.approx(plan["memory_bytes_per_device"]["peak"], rel=0.05)


TEXT = """HloModule jit_step

FileNames
1 "/elsewhere/site-packages/flax/linen.py"
2 "PROJECT/layers/norm.py"
3 "/home/me/mine.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10}
2 {file_name_id=2 function_name_id=1 line=36}
3 {file_name_id=3 function_name_id=1 line=5}

StackFrames
1 {file_location_id=3 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=1 parent_frame_id=3}
4 {file_location_id=1 parent_frame_id=2}

%fused (p0: f32[3,8], p1: f32[8]) -> f32[3,8] {
  %p0 = f32[3,8]{1,0} parameter(0)
  %p1 = f32[8]{0} parameter(1)
  %flat = f32[1,8]{1,0} bitcast(%p1)
  ROOT %d = f32[3,8]{1,0} dynamic-update-slice(%p0, %flat, %i, %z)
}

ENTRY %main (w: f32[8]) -> f32[8] {
  %w = f32[8]{0} parameter(0), metadata={op_name="state.variables[\\'params\\']PATH"}
  %m = f32[8]{0} parameter(1), metadata={op_name="state.optimizer[1].muPATH"}
  %zeros = f32[3,8]{1,0} fusion(), metadata={op_name="jit(step)/jvp(Model)/stack/broadcast_in_dim"}
  %y = f32[8]{0} fusion(%w), metadata={op_name="jit(step)/jvp(Model)/stack/norm/norm._scaled/mul" stack_frame_id=3}
  %stored = f32[3,8]{1,0} fusion(%zeros, %y), calls=%fused, metadata={op_name="jit(s)/jvp(M)/dynamic_update_slice"}
  %pad = f32[16]{0} fusion(%y), calls=%none
  %back = f32[8]{0} fusion(%y), metadata={op_name="jit(step)/transpose(jvp(Model))/stack/norm/mul" stack_frame_id=4}
}
"""


def program_text():
    return TEXT.replace("PROJECT", str(PROJECT)).replace("PATH", "[\\'stack\\'][\\'norm\\'][\\'scale_m\\']")


def handwritten():
    """3 values alive at the peak: the stack of y, y and its padded copy."""
    made = lambda size, begin, end, *names: Temporary(
        bytes=size, begin=begin, end=end, definitions=tuple(Definition(name) for name in names)
    )
    return Buffers(
        fixed=[
            Fixed(bytes=32, parameter=0, is_constant=False),
            Fixed(bytes=32, parameter=1, is_constant=False),
            Fixed(bytes=4, parameter=None, is_constant=True),
        ],
        temporaries=[
            made(96, 0, 5, "zeros", "stored"),
            made(32, 1, 4, "y"),
            made(64, 2, 3, "pad"),
            made(32, 4, 5, "back"),
        ],
        events=5,
        heap=200,
    )


ROWS = ["params/stack/norm/scale_m"]


def test_a_handwritten_program():
    found = explain(program_text(), handwritten(), ROWS, 260, has_peak=True)
    assert [tuple(one.values()) for one in found["peak_buffers"]] == [
        (96, "f32[3,8]", "stack/norm", "layers/norm.py:36", ""),  # the stored value's origin, not the stack's
        (64, "f32[16]", "stack/norm", "layers/norm.py:36", ""),  # the compiler's own copy has that of its operand
        (32, "weight", "stack/norm", "", "params/stack/norm/scale_m"),
        (32, "mu", "stack/norm", "", "params/stack/norm/scale_m"),
        (32, "f32[8]", "stack/norm", "layers/norm.py:36", ""),
        (4, "constant", "", "", ""),
        (0, "0 other buffers", "", "", ""),
    ]
    schedule = found["peak_schedule"]
    assert schedule["bytes"]["weights"] == [32] * 6
    assert schedule["bytes"]["optimizer"] == [32] * 6
    assert schedule["bytes"]["forward pass"] == [96, 128, 192, 128, 96, 0]
    assert schedule["bytes"]["backward pass"] == [0, 0, 0, 0, 32, 0]
    assert schedule["peak"] == 2


def test_a_peak_that_the_buffers_do_not_sum_to_is_not_explained():
    found = explain(program_text(), handwritten(), ROWS, 300, has_peak=True)
    assert found == {"peak_unexplained": "The compiler's buffers sum to 260 B, its peak is 300 B."}
    assert "does not report its buffers" in explain(TEXT, None, ROWS, 1, has_peak=True)["peak_unexplained"]


def test_gaps_of_the_arena_are_other_buffers():
    found = explain(program_text(), handwritten(), ROWS, 264, has_peak=False)  # without the constant
    assert found["peak_buffers"][-1]["bytes"] == 200 - 192
    assert explained_sum(found) == 264


def test_source_lines():
    sources, (computations, entry) = Sources(program_text()), parse(program_text())
    lines = {i.name: sources.of(i) for i in computations[entry]}
    assert (lines["y"], lines["back"], lines["w"]) == ("layers/norm.py:36", "mine.py:5", "")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("jit(step)/jvp(LanguageModel)/stack/while/body/block.body/block/mixer/mixer._attend/add", "stack/block/mixer"),
        ("jit(step)/transpose(jvp(LanguageModel.logits))/embedding.attend/bsm,vm->bsv/dot_general", "embedding"),
        ("jit(step)/jvp()/mul", ""),
    ],
)
def test_layers(name, place):
    layers = layers_of(["params/stack/block/mixer/query_mnd", "params/embedding/embedding_vm"])
    assert layer(name, layers) == place


def test_arguments():
    assert argument("batch.targets") == ("targets", "")
    assert argument("variables['params']['stack']['w']") == ("weight", "stack/w")


def test_the_terminal_and_the_page(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plan = cpu_plan("gshard.DenseLm8B2x2")
    show_explained(plan)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "other buffers" in out
    page = "".join(sections(plan))
    assert '"kind":"areas"' in page
    assert buffer_cells(plan)[0][3] in page
