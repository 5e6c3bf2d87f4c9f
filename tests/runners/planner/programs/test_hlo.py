"""Exchanges read from compiled programs whose exchanges are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from layers.specs import P
from runners.planner.programs.hlo import CollectiveTotal, _groups, collective_totals, loops_counted_once

MESH = {"data": 2, "model": 4}


def compiled(function, *specs):
    """`function` of (8, 64) float32 arrays, placed by the specs, the last for its result."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    placed = [NamedSharding(mesh, spec) for spec in specs]
    with jax.set_mesh(mesh):
        jitted = jax.jit(function, in_shardings=tuple(placed[:-1]), out_shardings=placed[-1])
        shapes = [jax.ShapeDtypeStruct((8, 64), np.float32)] * (len(specs) - 1)
        return collective_totals(jitted.lower(*shapes).compile().as_text(), MESH)


def test_all_gather_along_an_axis():
    found = compiled(lambda x: x, P("data", "model"), P("data", None))
    assert found == [CollectiveTotal("all-gather", "model", "f32", 1, 4 * 64 * 4 * 3 // 4)]


def test_all_reduce_counts_twice():
    found = compiled(lambda x: jnp.sum(x, axis=0), P("data", None), P(None))
    assert found == [CollectiveTotal("all-reduce", "data", "f32", 1, 2 * 64 * 4 // 2)]


def test_both_axes():
    found = compiled(lambda x: jnp.sum(x), P("data", "model"), P())
    assert {c.kind for c in found} == {"all-reduce"}
    assert {axis for c in found for axis in c.axis.split("+")} == {"data", "model"}


def test_an_exchange_in_a_loop_counts_every_turn():
    def loop(x):
        def body(carry, _):
            whole = jax.lax.with_sharding_constraint(carry, P(None, None))
            return jax.lax.with_sharding_constraint(jnp.sin(whole) * carry, P("data", None)), None

        return jax.lax.scan(body, x, None, length=5)[0]

    found = compiled(loop, P("data", None), P("data", None))
    gathers = [c for c in found if c.kind == "all-gather"]
    moved = gathers or [c for c in found if c.kind == "all-reduce"]
    assert [c.count for c in moved] == [5]


def test_loops_in_loops_multiply():
    def inner(x):
        step = lambda carry, _: (jnp.sin(carry) + jnp.sum(carry, axis=1, keepdims=True), None)
        return jax.lax.scan(step, x, None, length=5)[0]

    outer = lambda x: jax.lax.scan(lambda carry, _: (inner(carry), None), x, None, length=3)[0]
    found = compiled(outer, P("data", "model"), P("data", "model"))
    assert found == [CollectiveTotal("all-reduce", "model", "f32", 15, 15 * (2 * 4 * 4 * 3 // 4))]


@pytest.mark.parametrize(
    ("written", "members"),
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", [0, 4]),
        ("replica_groups=[2,4]<=[8]", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [0, 4]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", [0, 4]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}", [0, 1, 2, 3]),
        ("source_target_pairs={{0,0},{1,5},{5,1}}", [1, 5]),
    ],
)
def test_ways_to_write_a_group(written, members):
    assert _groups(f"%x), channel_id=1, {written}, dimensions={{0}}", 8)[0] == members


TPU = """HloModule step

%all-reduce-scatter.1 (input: bf16[8,64]) -> bf16[8,16] {
  %input = bf16[8,64]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce.1 = bf16[8,64]{1,0:T(8,128)(2,1)} all-reduce(%input), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %dynamic-slice.1 = bf16[8,16]{1,0:T(8,128)(2,1)} dynamic-slice(%all-reduce.1, %c, %i)
}

%condition (p: (s32[], bf16[8,64])) -> pred[] {
  %limit = s32[]{:T(256)} constant(7)
  ROOT %lt = pred[] compare(%n, %limit), direction=LT
}

%body (p: (s32[], bf16[8,64])) -> (s32[], bf16[8,64]) {
  %f = bf16[8,16]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %g = (bf16[8,16]{1,0}, bf16[8,64]{1,0}) all-gather-start(%f), channel_id=2, replica_groups=[2,4]<=[8], dimensions={1}
  %h = bf16[8,64]{1,0} all-gather-done(%g)
}

ENTRY %main (a: bf16[8,64]) -> bf16[8,64] {
  %w = (s32[], bf16[8,64]{1,0}) while(%t), condition=%condition, body=%body
}
"""


def test_tpu_programs():
    """A fused all-reduce and slice is a reduce-scatter; a start gives both ends; turns are in the condition."""
    assert collective_totals(TPU, MESH) == [
        CollectiveTotal("reduce-scatter", "model", "bf16", 7, 7 * 8 * 16 * 2 * 3),
        CollectiveTotal("all-gather", "model", "bf16", 7, 7 * 8 * 64 * 2 * 3 // 4),
    ]


def test_a_start_of_several_exchanges_gives_all_results():
    line = (
        "  %g = ((bf16[8,16], bf16[4,16]), (bf16[8,64], bf16[4,64])) all-gather-start(%a, %b), "
        "replica_groups=[2,4]<=[8], dimensions={1}"
    )
    text = f"ENTRY %main (a: bf16[8,16]) -> bf16[8,64] {{\n{line}\n}}\n"
    assert collective_totals(text, MESH) == [CollectiveTotal("all-gather", "model", "bf16", 1, 12 * 64 * 2 * 3 // 4)]


def test_branches_are_followed_and_unknown_loops_reported():
    text = """
%yes (a: f32[4]) -> f32[4] {
  %r = f32[4] all-reduce(%a), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
}

%open (p: s32[]) -> pred[] {
  %other = s32[] constant(99)
  ROOT %lt = pred[] compare(%n, %m), direction=LT
}

%body (p: s32[]) -> s32[] {
  %x = f32[4] conditional(%p, %a, %a), true_computation=%yes, false_computation=%no
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %w = s32[] while(%t), condition=%open, body=%body
}
"""
    assert collective_totals(text, MESH) == [CollectiveTotal("all-reduce", "data", "f32", 1, 16)]
    assert loops_counted_once(text) == 1
    assert loops_counted_once(TPU) == 0
