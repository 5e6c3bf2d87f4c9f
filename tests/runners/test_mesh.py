"""Meshes over slices of TPUs and hosts of GPUs."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from layers.errors import UsageError
from registry.resolve import resolve
from runners.mesh import factorizations, granule_numbers, granules, make_mesh
from runners.session import Session, on_devices

SHAPE = {"data": 4, "model": 2}


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that is not attached."""

    id: int
    platform: str
    slice_index: int
    process_index: int
    device_kind: str = "NVIDIA H100 80GB HBM3"


def gpus(hosts, of_host, is_by_slice=False):
    places = [(host, number) for host in range(hosts) for number in range(of_host)]
    return [
        Device(host * of_host + number, "gpu", host if is_by_slice else 0, 0 if is_by_slice else host)
        for host, number in places
    ]


def ids(mesh):
    return np.vectorize(lambda device: device.id)(mesh.devices)


@pytest.mark.parametrize("across", [(2, 1), (1, 2), (4, 1), (2, 2)])
@pytest.mark.parametrize("is_by_slice", [False, True])
def test_placement_is_that_of_a_hybrid_mesh(across, is_by_slice):
    hosts = int(np.prod(across))
    devices = gpus(hosts, 8 // hosts, is_by_slice)
    found = make_mesh(SHAPE, "auto", devices, dict(zip(SHAPE, across, strict=True)))
    inside = tuple(size // factor for size, factor in zip(SHAPE.values(), across, strict=True))
    expected = mesh_utils.create_hybrid_device_mesh(inside, across, devices, process_is_granule=not is_by_slice)
    np.testing.assert_array_equal(ids(found), np.vectorize(lambda device: device.id)(expected))


def test_blocks_of_cpus_are_hosts():
    mesh = make_mesh(SHAPE, "auto", jax.devices()[:8], {"data": 1, "model": 2})
    assert ids(mesh).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert granule_numbers(mesh, {"data": 1, "model": 2}) == [0, 1] * 4
    assert granule_numbers(mesh) == [0] * 8


def test_the_order_of_devices_is_that_inside_a_host():
    mesh = make_mesh({"data": 4, "model": 4}, "ring", gpus(2, 8), {"data": 1, "model": 2})
    assert ids(mesh)[0].tolist() == [0, 1, 8, 9]
    assert ids(mesh)[1].tolist() == [4, 5, 12, 13], "rows 0, 2, 3, 1"


@pytest.mark.parametrize(("across", "count"), [((4, 1), 4), ((1, 1), 1)])
def test_a_shape_for_another_number_of_hosts_is_refused(across, count):
    with pytest.raises(UsageError, match=rf"needs {count} slices or hosts of as many devices \(got 2 of \[4, 4\]"):
        make_mesh(SHAPE, "auto", gpus(2, 4), dict(zip(SHAPE, across, strict=True)))


def test_without_a_shape_hosts_follow_from_the_order():
    mesh = make_mesh(SHAPE, "auto", gpus(2, 4))
    assert ids(mesh).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert granule_numbers(mesh) == [0] * 4 + [1] * 4
    assert len(granules(gpus(8, 1))) == 8


def test_processes_of_one_host_are_one_host(monkeypatch):
    """Slurm starts a process for each GPU: JAX's slices are then the hosts."""
    of_two_hosts = [dataclasses.replace(gpu, slice_index=gpu.id // 4, process_index=gpu.id) for gpu in gpus(2, 4)]
    assert [len(block) for block in granules(of_two_hosts)] == [4, 4]
    of_one_host = [dataclasses.replace(gpu, process_index=gpu.id) for gpu in gpus(1, 8)]
    monkeypatch.setattr(jax, "process_count", lambda: 8)
    assert [len(block) for block in granules(of_one_host)] == [8]


def test_the_devices_choose_the_mesh():
    assert on_devices(resolve("llama.Llama3_8B"), gpus(2, 8)).DEVICE_MESH_SHAPE == (16, 1)
    assert on_devices(resolve("llama.Llama3_8B"), jax.devices()[:1]).DEVICE_MESH_SHAPE == (8, 1)


def losses(*sets):
    knobs = ["DEVICE_MESH_SHAPE=4,2", "NUM_LAYERS=1", "SEQ_LEN=16", "DTYPE=float32", *sets]
    session, found = Session(resolve("StdlibTiny", knobs, smoke=True), jax.devices()[:8]), []
    with session.placed():
        state, batches = session.settle(session.functions.init()), session.host_batches.iterate(session.train.input)
        for _ in range(3):
            state = session.settle(session.functions.step(state, next(batches)[0], session.seed))
            found.append(float(state.sums.loss / state.sums.weight))
    return ids(session.mesh).tolist(), found


@pytest.mark.slow
def test_training_is_the_same_wherever_the_devices_are():
    order, expected = losses()
    jax.clear_caches()  # traces of one order of the devices
    others, found = losses("DCN_MESH_SHAPE=1,2")
    assert order != others
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert expected[2] < expected[0]


def test_factorizations():
    assert list(factorizations(4, [4, 4])) == [(1, 4), (2, 2), (4, 1)]
    assert len(list(factorizations(128, [128] * 3))) == 36
    assert list(factorizations(4, {"data": 6, "model": 8}.values())) == [(1, 4), (2, 2)]
    assert not list(factorizations(5, [6, 8]))
