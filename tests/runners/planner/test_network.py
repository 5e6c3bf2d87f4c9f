"""Exchanges across slices and hosts: closed forms, better placements, and plans by the compilers of GPUs and TPUs."""

import json
import subprocess
import sys

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from registry.resolve import resolve
from runners.machine.chips import CHIPS
from runners.mesh import granule_numbers, make_mesh
from runners.planner import network
from runners.planner.cost import cost
from runners.planner.machine import Machine
from runners.planner.network import bounds, sent_across, warning
from runners.planner.programs.hlo import collective_totals
from runners.planner.summary import collective_table, numbers, show
from runners.session import Session
from tests.support.compilers import needs_gpu_compiler, needs_tpu_compiler

P = 1_048_576  # bytes of a result


def ring(kind, payload, devices):
    """Bytes that a device of a flat ring sends."""
    return {
        "all-gather": payload * (devices - 1) // devices,
        "all-reduce": 2 * payload * (devices - 1) // devices,
        "reduce-scatter": payload * (devices - 1),
        "all-to-all": payload * (devices - 1) // devices,
    }[kind]


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "reduce-scatter", "all-to-all"])
@pytest.mark.parametrize(("hosts", "of_host"), [(2, 8), (4, 4), (8, 1), (1, 8), (2, 1)])
def test_what_crosses_and_what_stays_inside_are_the_ring(kind, hosts, of_host):
    devices = hosts * of_host
    across = sent_across(kind, P, devices, of_host)
    gathered = {"all-gather": P // of_host, "all-reduce": P // of_host, "reduce-scatter": P, "all-to-all": P}[kind]
    inside = {  # the same collective among the devices of a host, on what the other hosts' devices have sent them
        "all-gather": ring(kind, P, of_host),
        "all-reduce": ring(kind, P, of_host),
        "reduce-scatter": ring(kind, P * hosts, of_host),
        "all-to-all": P * (of_host - 1) // devices,
    }[kind]
    assert across == ring(kind, gathered, hosts), "among the devices in one place of all hosts"
    assert across + inside == ring(kind, P, devices)


def test_a_permutation_crosses_or_not():
    assert sent_across("collective-permute", P, 2, 1) == P
    assert sent_across("collective-permute", P, 2, 2) == 0


def totals(line, granules):
    text = f"HloModule m, num_partitions=8\n\nENTRY %main (a: f32[64]) -> f32[64] {{\n  {line}\n}}\n"
    (total,) = collective_totals(text, {"data": 2, "model": 4}, granules)
    return total.axis, total.bytes, total.network_bytes


@pytest.mark.parametrize(
    ("groups", "granules", "expected"),
    [
        ("replica_groups=[2,4]<=[8]", [0] * 4 + [1] * 4, ("model", 192, 0)),
        ("replica_groups=[2,4]<=[8]", [0, 0, 1, 1] * 2, ("model", 192, 64)),
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", [0, 0, 0, 0, 1, 1, 1, 2], ("model", 192, 192)),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", [0] * 4 + [1] * 4, ("data", 128, 128)),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", [0] * 4 + [1] * 4, ("data", 128, 128)),
        ("replica_groups=[1,8]<=[8]", [0] * 4 + [1] * 4, ("data+model", 224, 32)),
    ],
)
def test_each_exchange_is_split_by_the_places_of_its_devices(groups, granules, expected):
    assert totals(f"%g = f32[64] all-gather(%a), channel_id=1, {groups}, dimensions={{0}}", granules) == expected


def test_a_permutation_with_one_move_across_crosses():
    line = "%g = f32[64] collective-permute(%a), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3}}"
    assert totals(line, [0] * 8)[1:] == (256, 0)
    assert totals(line, [0, 0, 1, 1] * 2)[1:] == (256, 256)


@pytest.mark.parametrize(("across", "expected"), [((1, 2), 1024), ((2, 1), 0), ((2, 2), 1024), ((1, 4), 3072)])
def test_a_program_by_hand(across, expected):
    """Four devices gather 4,096 bytes of which each has 1,024, so in a ring each sends 3,072.

    On two hosts with two of the devices each, a host lacks 2,048 bytes, which the other's two devices send it: 1,024
    each. On four hosts all that is sent crosses.
    """
    shape, factors = {"data": 2, "model": 4}, dict(zip(("data", "model"), across, strict=True))
    mesh = make_mesh(shape, "auto", jax.devices()[:8], factors)
    split, everywhere = (NamedSharding(mesh, spec) for spec in (PartitionSpec("model"), PartitionSpec()))
    gather = jax.jit(lambda x: x, in_shardings=split, out_shardings=everywhere)
    text = gather.lower(jax.ShapeDtypeStruct((1024,), "float32")).compile().as_text()
    (total,) = collective_totals(text, shape, granule_numbers(mesh, factors))
    found = (total.kind, total.axis, total.count, total.bytes, total.network_bytes)
    assert found == ("all-gather", "model", 1, 3072, expected)


OF_ONE_SLICE = """HloModule jit_step, num_partitions=4

ENTRY %main (a: f32[64]) -> f32[64] {
  %g = f32[64] all-gather(%a), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}
  %s = (f32[64]{0:T(128)}, u32[], token[]) send(%a, %t), channel_id=2, is_host_transfer=true, KIND
}
"""


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ('_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"', ("all-reduce", 256)),
        (
            '_xla_megascale_target={{100000,200000},{100001,200001}},_xla_megascale_transfer_type="ALL_GATHER"',
            ("all-gather", 256),
        ),
        ('_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="REDUCE_SCATTER"', ("reduce-scatter", 128)),
        ('_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ONE_TO_ONE"', ("collective-permute", 256)),
    ],
)
@pytest.mark.parametrize(("axis", "granules"), [("data", [0] * 4 + [1] * 4), ("model", [0, 0, 1, 1] * 2)])
def test_the_program_of_one_slice(kind, found, axis, granules):
    text, mesh = OF_ONE_SLICE.replace("KIND", kind), {"data": 2, "model": 4}
    sums = {
        (total.kind, total.axis): (total.bytes, total.network_bytes)
        for total in collective_totals(text, mesh, granules)
    }
    inside = ("all-gather", "model")  # of 2 or of 4 devices
    gathered, sent = sums.pop(inside)
    if found[0] == "all-gather" and axis == "model":
        assert (gathered - sent, sent) == (128, 256)
    else:
        assert (gathered, sent) == (128, 0)
        assert sums == {(found[0], axis): (found[1], found[1])}


def plan_of(mesh, collectives, hosts, along=None):
    return {
        "mesh": mesh,
        "across": {"of": "hosts", "count": hosts, "mesh": {axis: hosts if axis == along else 1 for axis in mesh}},
        "collectives": [
            {"kind": kind, "axis": axis, "bytes": sent, "network_bytes": across}
            for kind, axis, sent, across in collectives
        ],
    }


def test_the_network_has_a_time_of_its_own():
    collectives = plan_of({}, [("all-gather", "data", 100e9, 20e9), ("all-reduce", "model", 45e9, 0)], 2)["collectives"]
    assert bounds(collectives, CHIPS["h100"]) == {
        "links_data_seconds": 80 / 450,
        "network_data_seconds": 20 / 50,
        "links_model_seconds": 45 / 450,
    }
    assert "network_data_seconds" not in bounds(collectives, CHIPS["v4"])


GIB = 2**30


@pytest.mark.parametrize(
    ("mesh", "collectives", "message"),
    [
        (
            {"data": 8, "model": 8},
            [("all-reduce", "model", 70 * GIB, 10 * GIB), ("all-gather", "data", 7 * GIB, 0)],
            "Mesh axis 'model' spans hosts: 10 GiB of the 70 GiB that it sends per device and step cross the network. "
            "--set=DCN_MESH_SHAPE=2,1 sends about 1 GiB across instead.",
        ),
        (
            {"data": 1, "model": 16},
            [("all-reduce", "model", 75 * GIB, 5 * GIB)],
            "--set=DEVICE_MESH_SHAPE=2,8 --set=DCN_MESH_SHAPE=2,1 keeps it inside.",
        ),
        (
            {"data": 8, "model": 8},
            [("all-reduce", "model", 49 * GIB, 7 * GIB), ("all-gather", "data", 63 * GIB, 0)],
            None,  # the other axis would send 9 GiB
        ),
        (
            {"data": 2, "model": 8},
            [("all-reduce", "model", 49 * GIB, 7 * GIB), ("all-reduce", "data", 5 * GIB, 0)],
            "7 GiB of the 49 GiB that it sends per device and step cross the network. --set=DCN_MESH_SHAPE=2,1 sends",
        ),
        ({"data": 8, "model": 8}, [("all-reduce", "model", 70 * GIB, 0), ("all-gather", "data", 7 * GIB, GIB)], None),
        (
            {"data": 8, "model": 8},
            [("all-reduce", "model", 70 * GIB, 0), ("all-gather", "data", 7 * GIB, 7 * GIB)],
            None,  # the best placement is the current one, although its program sends more than the closed form
        ),
        ({"data": 64, "model": 1}, [("all-gather", "data", 63 * GIB, GIB)], None),
    ],
)
def test_an_axis_that_sends_most_across_gets_a_better_placement(mesh, collectives, message):
    (along,) = (axis for _, axis, _, across in collectives if across)
    found = warning(plan_of(mesh, collectives, 2, along))
    assert found is None if message is None else message in found


def test_the_estimate_of_a_placement_is_the_closed_form():
    for kind in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all"):
        plan = plan_of({"data": 4, "model": 8}, [(kind, "model", ring(kind, P, 8), 0)], 4)
        for hosts in (1, 2, 4):
            expected = sent_across(kind, P, 8, 8 // hosts)
            assert network._estimate(plan, (4 // hosts, hosts)) == pytest.approx(expected, abs=2)


def planned(*sets, chip="h100"):
    session = Session(resolve("DenseLm8B2x2", ["DEVICE_MESH_SHAPE=2,4", *sets], smoke=True), jax.devices()[:8])
    return cost(session, Machine(chip=None if chip is None else CHIPS[chip]))


def test_a_plan_lists_what_crosses(capsys):
    plan = planned("DCN_MESH_SHAPE=1,2")
    assert plan["across"] == {"of": "hosts", "count": 2, "mesh": {"data": 1, "model": 2}}
    by_axis = lambda axis, key: sum(c[key] for c in plan["collectives"] if c["axis"] == axis)
    assert 0 < by_axis("model", "network_bytes") < by_axis("model", "bytes")
    assert by_axis("data", "network_bytes") == 0
    assert plan["roofline"]["network_model_seconds"] == by_axis("model", "network_bytes") / 50e9
    assert plan["roofline_step_seconds"] >= network.shared_seconds(plan["roofline"])
    assert collective_table(plan)[0][-1] == "of these across hosts"
    assert "sent across 2 hosts" in dict(numbers(plan))
    show(plan)
    assert "--set=DCN_MESH_SHAPE=2,1 sends about" in " ".join(capsys.readouterr().out.split())
    unknown = {key: value for key, value in plan.items() if key != "roofline"}
    assert "time unknown: the network bandwidth is not published" in dict(numbers(unknown))["sent across 2 hosts"]
    assert "without a chip" in dict(numbers(unknown | {"chip": None}))["sent across 2 hosts"]


def command(tmp_path, *flags):
    ended = subprocess.run(
        [sys.executable, "-m", "runners.main", "--mode=plan", "--smoke", f"--workdir={tmp_path}", *flags],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads((tmp_path / "plan.json").read_text()), ended.stdout


@pytest.mark.slow
@pytest.mark.gpu_plan
@needs_gpu_compiler
def test_hosts_of_gpus(tmp_path):
    """Without a shape the last axis is inside a host; with one, exchanges of the other axis cross."""
    flags = ("--exp=gshard.DenseLm128B8x8", "--topology=h100:2x4")
    plan, _ = command(tmp_path, *flags, "--tokens=300e9", "--price=2.5")
    crossing = lambda plan: {c["axis"] for c in plan["collectives"] if c["network_bytes"]}
    assert crossing(plan) <= {"data", "data+model"}
    assert plan["budget"]["bound_cost"] == pytest.approx(2.5 * plan["budget"]["bound_device_hours"])
    other, output = command(tmp_path, *flags, "--set=DCN_MESH_SHAPE=1,2")
    assert "model" in crossing(other)
    assert "data" not in crossing(other)
    assert "--set=DCN_MESH_SHAPE=2,1" in output
    assert other["roofline_step_seconds"] > plan["roofline_step_seconds"]


@pytest.mark.slow
@needs_tpu_compiler
def test_slices_of_tpus(tmp_path):
    flags = ("--exp=gshard.DenseLm128B8x8", "--set=DEVICE_MESH_SHAPE=4,4", "--topology=4*v5e:2x2")
    plan, _ = command(tmp_path, *flags, "--set=DCN_MESH_SHAPE=2,2")
    assert plan["across"] == {"of": "slices", "count": 4, "mesh": {"data": 2, "model": 2}}
    axes = {c["axis"] for c in plan["collectives"] if c["network_bytes"]}
    assert {"data", "model"} <= axes


def test_a_chip_chooses_its_mesh():
    experiment = resolve("llama.Llama3_8B")
    assert Machine(chip=CHIPS["h100"]).placed(experiment, 16).DEVICE_MESH_SHAPE == (16, 1)
    assert Machine(chip=CHIPS["h100"]).placed(experiment, 32) is experiment
    assert Machine().placed(experiment, 16) is experiment
