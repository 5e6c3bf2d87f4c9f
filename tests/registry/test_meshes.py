"""Order of devices, meshes across slices and hosts, and meshes by machine."""

import argparse
import ast
import hashlib
import types
from pathlib import Path

import numpy as np
import pytest

from layers.errors import UsageError
from registry import index
from registry.checks import check
from registry.experiment import owner
from registry.experiments.tiny import StdlibTiny
from registry.meshes import GPUS, TPUS, Hardware, device_ids, parse_hardware
from registry.records.diff import diff, is_equal
from registry.records.snapshot import snapshot
from registry.resolve import resolve
from registry.tool import verbs
from runners.machine.chips import CHIPS
from tests.support.references.lingvo import NUMBERS


@pytest.mark.parametrize("name", NUMBERS["digests"])
def test_digests_of_the_reference(name):
    experiment = resolve(name)
    ids = device_ids(experiment.DEVICE_ORDER, experiment.DEVICE_MESH_SHAPE)
    assert ids.shape == experiment.DEVICE_MESH_SHAPE
    assert sorted(ids.ravel()) == list(range(experiment.num_devices))
    digest = hashlib.sha256(",".join(map(str, ids.ravel())).encode()).hexdigest()
    assert digest[:16] == NUMBERS["digests"][name]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16])
def test_neighbors_on_a_ring_are_two_apart(count):
    row = device_ids("ring", (1, count))[0]
    assert np.abs(np.diff([*row, row[0]])).max(initial=0) <= 2


def test_three_axes_have_no_ring():
    with pytest.raises(UsageError, match="two axes"):
        device_ids("ring", (2, 2, 2))


def test_the_chips_of_names_are_those_with_a_specification():
    assert {*TPUS, *GPUS} == set(CHIPS)
    assert set(GPUS) == {name for name, chip in CHIPS.items() if chip.gpu}


@pytest.mark.parametrize(
    ("name", "hardware", "devices", "granules"),
    [
        ("v3:8x8", Hardware("v3", (8, 8)), 128, 1),
        ("2*v5e:16x16", Hardware("v5e", (16, 16), 2), 512, 2),
        ("3*v4:2x2x4", Hardware("v4", (2, 2, 4), 3), 48, 3),
        ("h100:8x4", Hardware("h100", (8, 4)), 32, 8),
    ],
)
def test_hardware(name, hardware, devices, granules):
    found = parse_hardware(name, "--topology")
    assert found == hardware
    assert (found.devices, found.granules) == (devices, granules)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2,), r"DCN_MESH_SHAPE = \(2,\) and MESH_AXES = \('data', 'model'\) differ in length"),
        ((4, 1), r"DCN_MESH_SHAPE = \(4, 1\) must divide the mesh, which has 2 devices along 'data' \(got 4\)"),
        ((1, 0), r"must divide the mesh, which has 4 devices along 'model' \(got 0\)"),
    ],
)
def test_a_shape_across_that_does_not_divide_the_mesh_is_refused(shape, message):
    with pytest.raises(UsageError, match=message):
        check(Small.derive(DCN_MESH_SHAPE=shape)())


Small = StdlibTiny.Smoke().derive(DEVICE_MESH_SHAPE=(2, 4), BATCH_SIZE=32)


def test_a_shape_across_is_by_axis_and_not_for_folded_meshes():
    mesh = {"data": 2, "model": 4}
    assert Small().across(mesh) is None
    assert Small.derive(DCN_MESH_SHAPE=(2, 2))().across(mesh) == {"data": 2, "model": 2}
    assert resolve("StdlibTiny", ["DCN_MESH_SHAPE=2,1"], smoke=True).across(mesh) == {"data": 2, "model": 1}
    smoke = StdlibTiny.derive(DCN_MESH_SHAPE=(8, 1)).derive(smoke=True)()
    assert smoke.across(mesh) is None


@pytest.mark.parametrize(
    ("meshes", "message"),
    [
        ({"h100": (8, 1)}, r"MESHES\['h100'\] must be a TPU and its grid of chips, .* \(got h100\)"),
        ({"h10:1x8": (8, 1)}, r"Unknown chip 'h10' in MESHES\['h10:1x8'\]\. Did you mean 'h100'"),
        ({"h100:1x8": (8,)}, r"MESHES\['h100:1x8'\] = \(8,\) and MESH_AXES = .* differ in length"),
        ({"h100:1x8": (4, 1)}, r"product is the 8 devices of h100:1x8"),
        ({"v3:2x2": (4, 1)}, r"product is the 8 devices of v3:2x2"),
        ({"h100:1x8": (-1, 1)}, r"sizes of at least 1"),
        ({"2*h100:2x8": (32, 1)}, r"has slices, which only TPUs have\. Write hosts x GPUs: h100:4x8"),
        ({"v4:2x2x4": (2, 2), "h100:8x8": (64, 1)}, r"product is the 16 devices"),
        ({"h100:8x8": (64, 1)}, r"MESHES\['h100:8x8'\]: Dimension 32 of weight"),
    ],
)
def test_every_mesh_is_checked(meshes, message):
    with pytest.raises(UsageError, match=message):
        check(Small.derive(MESHES=meshes)())
    check(Small.derive(MESHES={"h100:2x4": (4, 2)})())
    check(Small.derive(MESHES={"h100:8x8": (64, 1)}).derive(DEVICE_MESH_SHAPE=(2, 4))())


def test_a_mesh_of_as_many_hosts_is_checked_with_the_shape_across():
    cls = Small.derive(DCN_MESH_SHAPE=(2, 1), MESHES={"h100:1x8": (1, 8)})
    check(cls())
    with pytest.raises(UsageError, match=r"MESHES\['h100:2x4'\]: DCN_MESH_SHAPE = \(2, 1\) must divide the mesh"):
        check(cls.derive(MESHES={"h100:2x4": (1, 8)})())


def test_a_wrong_mesh_of_a_machine_is_refused_on_it():
    with pytest.raises(UsageError, match=r"MESHES\['h100:1x8'\] = \(4, 1\) must be .* 8 devices of h100:1x8"):
        Small.derive(MESHES={"h100:1x8": (4, 1)})().on("h100", 8, 1)


def test_the_list_has_meshes_where_they_apply():
    text = """
@register
class Base:
    DEVICE_MESH_SHAPE = (2, 1)
    MESHES = {"h100:1x8": (8, 1)}
@register
class Child(Base): pass
@register
class Other(Base):
    DEVICE_MESH_SHAPE = (4, 1)
@register
class Computed(Base):
    MESHES = {[]: 1}
"""
    classes = {("m", node.name): node for node in ast.parse(text).body}
    entries = {name: index._entry("m", Path("m.py"), node, classes) for (_, name), node in classes.items()}
    assert {name: entry.meshes for name, entry in entries.items()} == {
        "Base": {"h100:1x8": (8, 1)},
        "Child": {"h100:1x8": (8, 1)},
        "Other": {},
        "Computed": {},
    }
    assert [entry.mesh for entry in entries.values()] == [(2, 1), (2, 1), (4, 1), (2, 1)]


def test_the_mesh_is_that_of_the_machine():
    meshes = {"v5e:2x4": (8, 1), "h100:1x8": (2, 4), "h100:2x4": (4, 2)}
    cls = Small.derive(MESHES=meshes, DEVICE_MESH_SHAPE=(1, 8))
    shape = lambda experiment, *machine: experiment.on(*machine).DEVICE_MESH_SHAPE
    assert shape(cls(), "h100", 8, 1) == (2, 4)
    assert shape(cls(), "h100", 8, 2) == (4, 2)
    assert shape(cls(), "h100", 8, 8) == (2, 4), "another number of hosts, as many devices"
    assert shape(cls(), "v5e", 8, 1) == (8, 1)
    assert cls().on("h100", 16, 1).DEVICE_MESH_SHAPE == (1, 8), "as declared"
    assert shape(cls.derive(DEVICE_MESH_SHAPE=(8, 1))(), "h100", 8, 1) == (8, 1), "a class below it states a mesh"
    assert shape(cls.derive(NUM_LAYERS=2)(), "h100", 8, 1) == (2, 4)
    chosen = cls().on("h100", 8, 1)
    assert owner(type(chosen), "DEVICE_MESH_SHAPE") == "MESHES['h100:1x8']"
    assert snapshot(chosen)["knobs"]["DEVICE_MESH_SHAPE"] == {"value": "(2, 4)", "owner": "MESHES['h100:1x8']"}


def test_set_states_the_mesh_on_every_machine():
    experiment = resolve("llama.Llama3_8B", ["DEVICE_MESH_SHAPE=4,2"])
    assert experiment.on("h100", 8, 1) is experiment
    chosen = resolve("llama.Llama3_8B").on("h100", 16, 2)
    assert chosen.DEVICE_MESH_SHAPE == (16, 1)


def test_a_shape_across_is_for_machines_of_as_many_hosts():
    cls = Small.derive(MESHES={"h100:1x8": (2, 4), "h100:2x4": (4, 2)}, DCN_MESH_SHAPE=(2, 1))
    assert cls().on("h100", 8, 2).DCN_MESH_SHAPE == (2, 1)
    assert cls().on("h100", 8, 1).DCN_MESH_SHAPE is None


def test_meshes_cannot_change_and_are_recorded():
    changed = Small.derive(DCN_MESH_SHAPE=(2, 1), MESHES={"h100:1x8": (8, 1)})
    knobs = snapshot(changed())["knobs"]
    assert [knobs[name]["value"] for name in ("DCN_MESH_SHAPE", "MESHES")] == ["(2, 1)", "{'h100:1x8': (8, 1)}"]
    assert isinstance(changed.MESHES, types.MappingProxyType)


def test_a_run_on_a_machine_of_meshes_is_compared_on_its_mesh():
    stored = snapshot(resolve("llama.Llama3_8B").on("h100", 16, 2))
    assert stored["mesh"] == {"data": 16, "model": 1}
    options = argparse.Namespace(set=[], imports=[])
    assert is_equal(diff(stored, verbs._today(options, stored)))
