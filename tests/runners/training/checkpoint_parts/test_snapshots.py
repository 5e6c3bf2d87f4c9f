import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.specs import P
from runners.training.checkpoint_parts import snapshots
from runners.training.checkpoint_parts.snapshots import Snapshots


@pytest.fixture(autouse=True)
def _small_arrays_are_large(monkeypatch):
    monkeypatch.setattr(snapshots, "LARGE", 16)


def pointers(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def test_a_snapshot_survives_an_update_and_gives_its_memory_to_the_next():
    state, kept = {"w": jnp.arange(64.0), "step": jnp.int32(1)}, Snapshots()
    first = kept.take(state)
    assert first["step"] is state["step"], "small"
    where = pointers(first["w"])
    assert where != pointers(state["w"])
    state = jax.jit(lambda state: {"w": state["w"] * 2, "step": state["step"] + 1}, donate_argnums=0)(state)
    np.testing.assert_array_equal(first["w"], np.arange(64.0))
    second = kept.take(state)
    np.testing.assert_array_equal(second["w"], 2 * np.arange(64.0))
    assert pointers(second["w"]) == where
    assert first["w"].is_deleted()


def test_snapshots_keep_shardings():
    sharding = jax.sharding.NamedSharding(jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,)), P("data"))
    kept, arrays = Snapshots(), [jax.device_put(jnp.arange(64.0) + n, sharding) for n in range(2)]
    for array in arrays:
        (copy,) = kept.take([array])
        assert copy.sharding == sharding
        np.testing.assert_array_equal(copy, array)


def test_an_accelerator_takes_no_snapshot(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    state = [jnp.arange(64.0)]
    assert Snapshots().take(state) is state
