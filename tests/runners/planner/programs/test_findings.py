"""Findings in a handwritten program for GPUs; test_topologies.py has those in programs of the GPU compiler."""

import types

from layers.attention.implementations import Decision
from registry.layouts import LAYOUTS
from runners.planner.explained import kernel_cells, kernels_sentence, sections
from runners.planner.programs.findings import Judged, attention_kernels, judge
from runners.planner.programs.kernels import Kernels

MIXER = 'metadata={op_name="jit(step)/jvp(Model)/stack/while/body/block/mixer/mixer._attend/PART"}'
FFN = 'metadata={op_name="jit(step)/jvp(Model)/stack/while/body/block/ffn/dot_general"}'
SCORES = f"""
  %q = bf16[2,4,16,8]{{3,2,1,0}} copy(%x), {MIXER}
  %scores = f32[2,4,16,16]{{3,2,1,0}} fusion(%q, %q), kind=kCustom, calls=%attend, {MIXER}
  %dropped = bf16[2,4,16,16]{{3,2,1,0}} fusion(%scores), kind=kLoop, calls=%drop, {MIXER}
"""
CUDNN = f"""
  %fused = (bf16[2,4,16,8]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax", {MIXER}
"""


def text_of(attention):
    """A loop of 3 layers on 2 hosts of 2 devices."""
    return f"""
%attend (a: bf16[2,4,16,8], b: bf16[2,4,16,8]) -> f32[2,4,16,16] {{
  %a = bf16[2,4,16,8]{{3,2,1,0}} parameter(0)
  %b = bf16[2,4,16,8]{{3,2,1,0}} parameter(1)
  ROOT %d = f32[2,4,16,16]{{3,2,1,0}} dot(%a, %b), lhs_batch_dims={{0,1}}, lhs_contracting_dims={{3}}, {MIXER}
}}

%drop (a: f32[2,4,16,16]) -> bf16[2,4,16,16] {{
  %a1 = f32[2,4,16,16]{{3,2,1,0}} parameter(0)
  ROOT %c = bf16[2,4,16,16]{{3,2,1,0}} convert(%a1)
}}

%turn (a: f32[32,64]) -> f32[64,32] {{
  %a2 = f32[32,64]{{1,0}} parameter(0)
  ROOT %t = f32[64,32]{{0,1}} transpose(%a2), dimensions={{1,0}}
}}

%condition (p: s32[]) -> pred[] {{
  %limit = s32[] constant(3)
  ROOT %lt = pred[] compare(%n, %limit), direction=LT
}}

%body (p: s32[]) -> s32[] {{
{attention}
  %w = f32[32,64]{{1,0}} all-gather(%p0), replica_groups=[2,2]<=[2,2]T(1,0), dimensions={{0}}, {FFN}
  %turned = f32[64,32]{{0,1}} fusion(%w), kind=kInput, calls=%turn, {FFN}
  %y = f32[32,64]{{1,0}} dot(%in, %w), lhs_contracting_dims={{1}}, {FFN}
  %in = f32[32,32]{{1,0}} add(%x, %x)
  %sum = f32[4]{{0}} all-reduce(%z), replica_groups=[2,2]<=[4], to_apply=%add, {FFN}
}}

ENTRY %main (a: f32[8]) -> f32[8] {{
  %loop = s32[] while(%t), condition=%condition, body=%body
}}
"""


WEIGHTS = {"params/stack/block/mixer/query_mnd": (3, 32, 4, 8), "params/stack/block/ffn/ffn_in_mf": (3, 32, 64)}
KNOBS = {"ATTENTION_DROPOUT": 0.1, "DTYPE": "bfloat16", "LAYOUT": "fully_sharded", "ZERO_STAGE": None}


DENSE = Decision("stack/block/mixer", "dense", (("dropout on attention", "ATTENTION_DROPOUT=0"),))


def judged(attention=SCORES, peak=1000, decisions=(DENSE,), **knobs):
    experiment = types.SimpleNamespace(layout=LAYOUTS["fully_sharded"], **(KNOBS | knobs))
    mesh = {"data": 2, "model": 2}
    program = Judged(
        **{"text": text_of(attention), "experiment": experiment, "weights": WEIGHTS, "length": 16, "mesh": mesh},
        **{"granules": (0, 0, 1, 1), "peak": peak, "attention": decisions},
    )
    return judge(program)


def test_each_kind_is_found_in_order():
    found = judged()
    assert found["kernels"]["attention"] == {"stack/block/mixer": "products, scores as arrays"}
    findings = {one["kind"]: one for one in found["findings"]}
    assert list(findings) == ["scores", "kernel", "float32", "gathers", "hosts", "copies"]
    scores = findings["scores"]
    assert (scores["layer"], scores["bytes"], scores["count"]) == ("stack/block/mixer", 3 * 2048 * (4 + 2), 6)
    assert scores["knob"] == "ATTENTION_IMPLEMENTATION=blockwise"
    assert findings["kernel"]["text"] == (
        "Attention is dense in stack/block/mixer, not cuDNN's kernel, because of dropout on attention. "
        "Knob: ATTENTION_DROPOUT=0."
    )
    float32 = findings["float32"]
    work = {"ffn": 2 * 32 * 64 * 32, "mixer": 2 * 2048 * 8}
    assert f"3 of 6 matrix products per step are in float32, {work['ffn'] / sum(work.values()):.0%}" in float32["text"]
    assert (float32["layer"], float32["knob"]) == ("stack/block/ffn", "")
    gathers = findings["gathers"]
    assert (gathers["bytes"], gathers["count"]) == (3 * 32 * 64 * 4 // 2, 3)
    assert "along data" in gathers["text"]
    assert gathers["knob"] == "LAYOUT=tensor_parallel"
    assert findings["hosts"]["bytes"] == gathers["bytes"], "only the exchange along data leaves a host"
    copies = findings["copies"]
    assert (copies["bytes"], copies["count"]) == (3 * (32 * 64 * 4 + 2 * 4 * 16 * 8 * 2), 6)
    assert scores["text"].endswith(" Knob: ATTENTION_IMPLEMENTATION=blockwise.")
    assert kernel_cells(found) == [
        ("products in f32", "3", f"{3 * work['ffn']:.4g} FLOPs"),
        ("products in bf16", "3", f"{3 * work['mixer']:.4g} FLOPs"),
        ("scores f32[2,4,16,16] in stack/block/mixer", "3", "24 KiB"),
        ("scores bf16[2,4,16,16] in stack/block/mixer", "3", "12 KiB"),
        ("copies and transposes", "6", "30 KiB"),
    ]
    page = "".join(sections(found))
    assert page.count("<li>") == 6
    assert "Attention: products, scores as arrays in stack/block/mixer." in page


def test_blocks_are_not_scores():
    """Where a row has one block only, its scores have the shape of all scores."""
    packed = Decision("stack/block/mixer", "blockwise", (("rows of several segments", ""),))
    found = judged(decisions=(packed,))
    assert found["kernels"]["attention"] == {"stack/block/mixer": "blockwise products"}
    assert found["findings"][0]["text"].startswith("Attention is blockwise in stack/block/mixer, not cuDNN's kernel")
    assert not found["findings"][0]["knob"]


def test_layers_with_scores_are_one_finding():
    attends = f"  %e = f32[2,4,16,16]{{3,2,1,0}} dot(%q, %q), lhs_batch_dims={{0,1}}, lhs_contracting_dims={{3}}, {FFN}"
    found = judged(SCORES + attends)["findings"]
    assert [one["kind"] for one in found].count("scores") == 1
    assert found[0]["text"].startswith("stack/block/mixer and 1 other layer write the scores")
    assert found[0]["bytes"] == 3 * 2048 * (4 + 2 + 4)


def test_a_program_without_scores():
    found = judged(CUDNN, peak=10**9, decisions=(Decision("stack/block/mixer", "cudnn"),))
    assert kernels_sentence(found) == "Attention: cuDNN attention in stack/block/mixer."
    assert [one["kind"] for one in found["findings"]] == ["float32", "gathers", "hosts"]


def test_kernels_of_a_program_for_tpus():
    """The compiler writes the metadata of a kernel in several lines."""
    attributes = 'custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={\n"sizes":"{}"\n}}'
    call = f"  %splash_mha_fwd.1 = f32[8]{{0}} custom-call(%a), {attributes}, {MIXER}"
    text = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n{call}\n}}"
    program = Judged(
        **{"text": text, "experiment": None, "weights": WEIGHTS, "length": 16, "mesh": {}, "granules": (), "peak": 1},
        attention=[Decision("stack/block/mixer", "splash"), Decision("tail", "blockwise")],
    )
    expected = {"stack/block/mixer": "Splash attention", "tail": "blockwise products"}
    assert attention_kernels(program) == {"kernels": {"attention": expected}}


def test_gathers_by_zero_name_its_stage():
    found = judged(ZERO_STAGE=3, ZERO_AXIS=None)
    assert next(one["knob"] for one in found["findings"] if one["kind"] == "gathers") == "ZERO_STAGE=2"


def test_an_array_of_other_dimensions_holds_no_scores():
    kernels = Kernels(text_of(SCORES), {"stack", "stack/block", "stack/block/mixer", "stack/block/ffn"})
    assert len(kernels.scores(16, 16, ())) == len(kernels.scores(16, 16, (16,))) == 2
    assert kernels.scores(8, 16, ()), "heads of a group may be rows of one product"
    assert not kernels.scores(32, 32, ())
    assert not kernels.scores(16, 64, ())


def test_products_of_cublas_are_products():
    config = '"dot_dimension_numbers":{"lhs_batch_dimensions":[],"lhs_contracting_dimensions":["1"]}'
    call = f'custom-call(%in, %w), custom_call_target="__cublas$lt$matmul", {FFN}, backend_config={{{config}}}'
    text = text_of(SCORES)
    dot = f"%y = f32[32,64]{{1,0}} dot(%in, %w), lhs_contracting_dims={{1}}, {FFN}"
    assert dot in text
    called = text.replace(dot, f"%y = (f32[32,64]{{1,0}}, s8[1024]{{0}}) {call}")
    layers = {"stack/block/mixer", "stack/block/ffn"}
    assert Kernels(called, layers).products == Kernels(text, layers).products
