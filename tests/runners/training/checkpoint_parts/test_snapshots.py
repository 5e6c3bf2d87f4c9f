from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.specs import P
from runners.training.checkpoint_parts import snapshots
from runners.training.checkpoint_parts.save_limits import Manager
from runners.training.checkpoint_parts.snapshots import Snapshots
from runners.training.checkpoints import Checkpoints
from tasks.programs import TrainProgram
from tasks.train_step import TrainState


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


def sharded(spec, shape=(4,)):
    mesh = jax.make_mesh(shape, ("data", "model")[: len(shape)], (jax.sharding.AxisType.Auto,) * len(shape))
    return jax.sharding.NamedSharding(mesh, spec)


def test_snapshots_keep_shardings_and_memory():
    kept, sharding, where = Snapshots(), sharded(P("data")), []
    for array in [jax.device_put(jnp.arange(64.0) + n, sharding) for n in range(2)]:
        (copy,) = kept.take([array])
        assert copy.sharding == sharding
        np.testing.assert_array_equal(copy, array)
        where.append(pointers(copy))
        assert where[-1] != pointers(array)
    assert where[0] == where[1]


@pytest.mark.parametrize(("spec", "shape"), [(P(), (4,)), (P("data"), (2, 2))])
def test_an_array_that_several_devices_hold_is_not_copied(spec, shape):
    array = jax.device_put(jnp.arange(64.0), sharded(spec, shape))
    assert Snapshots().take([array])[0] is array


def test_an_accelerator_takes_no_snapshot(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    state = [jnp.arange(64.0)]
    assert Snapshots().take(state) is state


def test_a_copy_that_fails_is_not_used_again():
    kept = Snapshots()
    kept.take([jnp.arange(64.0)])
    deleted = jnp.arange(64.0)
    deleted.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        kept.take([deleted])
    np.testing.assert_array_equal(kept.take([jnp.ones(64)])[0], np.ones(64))


def test_updates_continue_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """Each checkpoint has the state at its step, although the next update overwrites that; a copy waits for a write."""
    order, wait, take = [], Manager.wait, Snapshots.take
    monkeypatch.setattr(Manager, "wait", lambda self: (order.append("wait"), wait(self)))
    monkeypatch.setattr(Snapshots, "take", lambda self, tree: (order.append("take"), take(self, tree))[1])
    update = jax.jit(lambda state: state.replace(variables=2 * state.variables), donate_argnums=0)
    state = TrainState((), jnp.arange(64.0), *[()] * 5)
    checkpoints = Checkpoints(tmp_path, TrainProgram(input=SimpleNamespace(borders=()), num_steps=4, keep_last=3))
    for step in (1, 2, 3):
        checkpoints.save(step, state, {"tokens_seen": 0, "input": None}, None, continues=step < 3)
        if step < 3:
            state = update(state)
    checkpoints.close()
    assert order == ["wait", "take", "wait", "take", "wait", "wait"]
    for step in (1, 2, 3):
        like = {"variables": jax.ShapeDtypeStruct((64,), jnp.float32, sharding=state.variables.sharding)}
        restored = checkpoints.restore_part(step, like)
        np.testing.assert_array_equal(restored["variables"], 2.0 ** (step - 1) * np.arange(64))
