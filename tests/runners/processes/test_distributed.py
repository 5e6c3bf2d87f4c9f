"""What a process knows of the others: from flags, from what started it; and what they find out about each other."""

import argparse
import functools
import json
import threading
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from layers.errors import UsageError
from runners.host_batches import host_shards
from runners.mesh import make_mesh
from runners.processes import heartbeat, watchdog
from runners.processes.coordination import ProcessGroup, disagreement
from runners.processes.distributed import Position, find_position
from runners.training.checkpoint_parts import checksums as checksum_parts
from runners.training.checkpoint_parts.checksums import checksums
from tasks.inputs.indexed import Shard
from tests.support.clocks import FakeClock

NO_FLAGS = {"coordinator": None, "num_processes": None, "process_id": None}


def place(environment, **flags):
    return find_position(argparse.Namespace(**{**NO_FLAGS, **flags}), environment)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
KUBERNETES = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "2"}


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        ({}, {}, None),
        ({}, {"coordinator": "a:1", "num_processes": 2, "process_id": 1}, Position("a:1", 2, 1)),
        (SLURM, {}, Position()),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, {}, None),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, {}, None),  # a batch script, which has no srun in front
        (SLURM, {"coordinator": "a:1"}, Position("a:1", 2, 1)),
        (MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:5"}, {}, Position()),
        (MPI, {"coordinator": "a:1"}, Position("a:1", 4, 3)),  # Open MPI 5 sets no other variable
        (KUBERNETES, {}, Position("a:1", 4, 2)),
        (KUBERNETES | {"JAX_PROCESS_ID": "3"}, {}, Position("a:1", 4, 3)),
        (KUBERNETES, {"process_id": 0}, Position("a:1", 4, 0)),
    ],
)
def test_the_place_of_a_process(environment, flags, expected):
    assert place(environment, **flags) == expected


@pytest.mark.parametrize(
    ("environment", "flags", "message"),
    [
        ({}, {"coordinator": "a:1"}, "--num_processes and --process_id are missing"),
        ({}, {"num_processes": 2, "process_id": 1}, "--coordinator is missing"),
        ({}, {"coordinator": "a", "num_processes": 2, "process_id": 1}, "must be HOST:PORT"),
        ({}, {"coordinator": "a:0", "num_processes": 2, "process_id": 1}, "must be HOST:PORT"),
        ({}, {"coordinator": "a:1", "num_processes": 2, "process_id": 2}, "must be 0 to 1"),
        ({}, {"coordinator": "a:1", "num_processes": 0, "process_id": 0}, "must be at least 1"),
        (MPI, {}, "The address of process 0 is unknown"),
        (KUBERNETES | {"JAX_NUM_PROCESSES": "four"}, {}, "JAX_NUM_PROCESSES must be a number"),
    ],
)
def test_a_place_that_is_not_clear_is_refused(environment, flags, message):
    with pytest.raises(UsageError, match=message):
        place(environment, **flags)


def test_cloud_tpu_hosts_ask_jax(monkeypatch):
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/accel0"] if "accel" in pattern else [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "libtpu")
    assert place({}) == Position()
    assert place({"JAX_PLATFORMS": "cpu"}) is None


def cards(*seeds):
    return [{"host": f"h{i}", "--exp": "tiny.StdlibTiny", "SEED": str(seed)} for i, seed in enumerate(seeds)]


@pytest.mark.parametrize(
    ("seeds", "difference"),
    [
        ((1, 1, 1), ""),
        ((1, 2), "process 1 (h1) has SEED 2, process 0 has 1"),
        ((1, 2, 2), "process 0 (h0) has SEED 1, the others have 2"),
        ((1, 2, 2, 1), "process 1 (h1), process 2 (h2) have SEED 2, the others have 1"),
        ((1, 2, 3, 1, 1), "process 1 (h1), process 2 (h2) have SEED 2 or 3, the others have 1"),
        (
            (1, *[2] * 5, *[1] * 6),
            "process 1 (h1), process 2 (h2), process 3 (h3), process 4 (h4) and 1 more have SEED 2, the others have 1",
        ),
    ],
)
def test_the_odd_ones_are_named(seeds, difference):
    found = disagreement(cards(*seeds))
    advice = "Start all of them with the same command and the same code."
    assert found == (difference and f"The processes of this run disagree: {difference}. {advice}")


class Store:
    """The key-value store of a coordination service, in this process."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            if key in self.values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self.changed.notify_all()

    def key_value_increment(self, key, by):
        with self.changed:
            self.values[key] = str(int(self.values.get(key, 0)) + by)

    def key_value_try_get(self, key):
        if key not in self.values:
            raise RuntimeError("NOT_FOUND")
        return self.values[key]

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in self.values.items() if key.startswith(folder)]

    def blocking_key_value_get(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]


def test_all_get_one_result():
    store, results = Store(), {}

    def ask(index):
        one = ProcessGroup(store, index, 8)
        results[index] = [one.reduce(f"{index} {n}", lambda answers: "+".join(answers)) for n in range(3)]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert list(results.values()) == [["+".join(f"{i} {n}" for i in range(8)) for n in range(3)]] * 8


PATIENCE = 60.0


class Ended(Exception):
    """Replaces the end of the process: its error message and exit code."""


@pytest.fixture
def ends(monkeypatch):
    """A process that ends raises `Ended` instead."""

    def end(message, code=1):
        raise Ended(message, code)

    for module in (heartbeat, watchdog):
        monkeypatch.setattr(module, "end", end)


def watch(index=0, count=3, patience=PATIENCE, store=None):
    """The watch of one process, whose time is a fake clock's."""
    clock = FakeClock()
    return heartbeat.Heartbeat(ProcessGroup(store or Store(), index, count), patience, clock), clock


def beat(one, index, number, lost=""):
    one._processes.put(f"beats/{index}", json.dumps([number, 0, f"h{index}", lost]), again=True)


def beats(one, clock, index, seconds, lost=""):
    """Has a process beat every second for so many of them."""
    for second in range(seconds):
        clock.at(second, functools.partial(beat, one, index, second, lost))


def stop_said(one):
    value = one._processes.client.values.get("vortaro/stop")
    return value and json.loads(value)["message"]


def watched(one):
    """What the process that watches ends with."""
    with pytest.raises(Ended) as ended:
        one._watch()
    return ended.value.args


def test_who_goes_silent_is_called_dead(ends):
    one, clock = watch()
    beats(one, clock, 1, 1000)
    beats(one, clock, 2, 100)
    clock.at(99 + PATIENCE, lambda: stop_said(one) and pytest.fail("called dead too early"))
    message, code = watched(one)
    assert message.startswith("Process 2 (h2) has sent no heartbeat for 61 s. This process stops too.")
    assert code == 1
    assert 99 + PATIENCE < clock.now() <= 99 + PATIENCE + 5  # one more beat, and the others receive the reason before


def test_a_process_that_never_sends_a_heartbeat_has_failed(ends):
    one, clock = watch(count=2)
    assert watched(one)[0].startswith("Process 1 (host unknown) has sent no heartbeat")
    assert PATIENCE < clock.now() <= PATIENCE + 5


def test_who_took_leave_is_not_missed(ends):
    one, clock = watch(count=2)
    clock.at(3, lambda: one._processes.put("beats/1", "gone", again=True))
    clock.at(20 * PATIENCE, one._closed.set)
    one._watch()
    assert stop_said(one) is None


def test_a_lost_connection_makes_the_watch_impatient(ends):
    one, clock = watch(patience=1000)
    beats(one, clock, 1, 100, lost="Gloo all-reduce failed")
    beat(one, 2, 0)
    assert watched(one)[0].startswith("Process 2 (h2) has sent no heartbeat for 11 s")
    one, clock = watch(patience=1000, count=2)
    beats(one, clock, 1, 100, lost="Gloo all-reduce failed")
    assert watched(one)[0].startswith("Process 1 (h1) lost contact with another one: Gloo all-reduce failed.")
    assert 3 * heartbeat.LOST_CONTACT_SECONDS < clock.now() <= 3 * heartbeat.LOST_CONTACT_SECONDS + 5


def test_all_stop_with_the_message_of_one(ends):
    store = Store()
    failing, _ = watch(index=1, store=store)
    with pytest.raises(Ended) as own:
        failing.fail(UsageError("The data is missing."))
    assert own.value.args == ("The data is missing.", 2)
    for index in (0, 2):
        one, clock = watch(index=index, store=store)
        message, code = watched(one)
        assert (message, code) == (f"Process 1 ({one._processes.host}) stopped: The data is missing.", 2)
        assert clock.now() < 5


def test_a_coordinator_that_does_not_answer_is_noticed(ends):
    store = Store()
    one, clock = watch(index=1, store=store)

    def unreachable(*arguments, **given):
        raise RuntimeError("UNAVAILABLE: Socket closed")

    store.key_value_set = unreachable
    one._watch()  # leaves it to the other thread
    assert PATIENCE < clock.now() <= PATIENCE + 5
    with pytest.raises(Ended, match=r"Process 0, the coordinator of this run, has not answered for 6\d s") as ended:
        one._watch_coordinator()
    assert ended.value.args[1] == 1


DTYPES = (jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.bool_)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_sees_every_changed_bit(dtype):
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.integers(0, 2, (6, 5)) if dtype == jnp.bool_ else rng.normal(size=(6, 5)) * 100).astype(
        dtype
    )
    [whole] = checksums([values])
    host = np.asarray(values)
    for _ in range(40):
        changed = host.copy()
        raw = changed.view(np.uint8).reshape(-1)
        bit = 0 if dtype == jnp.bool_ else rng.integers(8)
        raw[rng.integers(raw.size)] ^= 1 << bit
        assert checksums([jnp.asarray(changed)]) != [whole]
    distinct = np.arange(30, dtype=np.float32).reshape(6, 5)
    assert checksums([jnp.asarray(distinct)]) != checksums([jnp.asarray(distinct[::-1])])  # rows that traded places


@pytest.mark.parametrize("large", [0, checksum_parts.LARGE])
@pytest.mark.parametrize(
    ("shape", "specs"),
    [
        ((), ()),
        ((0, 3), ()),
        ((7,), ()),
        ((56,), (P("model"), P(("data", "model")))),
        ((16, 24), (P("data"), P("model", "data"), P(None, "model"))),
        ((8, 5, 6), (P("data", None, "model"),)),
        ((8, 4, 2, 3), (P("model", "data"), P(None, None, "model"))),
    ],
)
def test_a_checksum_is_the_sum_of_its_definition(monkeypatch, large, shape, specs):
    """Also in blocks, which do not divide the shapes, and of arrays that devices share."""
    monkeypatch.setattr(checksum_parts, "LARGE", large)
    monkeypatch.setattr(checksum_parts, "BLOCK", 20)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    values = np.asarray(jax.random.normal(jax.random.key(0), shape))
    place = np.arange(values.size, dtype=np.uint32).reshape(shape)
    odd = (place * np.uint32(2654435761)) ^ (place >> np.uint32(15)) | np.uint32(1)
    wanted = int(np.sum(values.view(np.uint32) * odd, dtype=np.uint32))
    for spec in (P(), *specs):
        checksum_parts._sums.cache_clear()
        assert checksums([jax.device_put(values, NamedSharding(mesh, spec))]) == [wanted]


def test_the_limit_of_a_step_is_exact(tmp_path):
    clock, processes = FakeClock(), ProcessGroup()
    processes.stacks = tmp_path
    dog = watchdog.Watchdog(processes, 1000, clock)
    with dog.watching():
        dog.expect("Update", 7)
        assert dog._until == clock.now() + 1000
        dog.rest()
        assert dog._until == float("inf")
    assert watchdog.write_stacks(processes) == tmp_path / "process_0.txt"
    assert "test_the_limit_of_a_step" in (tmp_path / "process_0.txt").read_text()


def test_an_update_that_does_not_end_ends_the_run(tmp_path, ends):
    clock, closed, processes = FakeClock(), threading.Event(), ProcessGroup()
    processes.stacks = tmp_path
    dog = watchdog.Watchdog(processes, 20.0, clock)
    for step in range(1, 9):
        clock.at(15 * step, functools.partial(dog.expect, "Update", step))
    clock.at(130, dog.rest)  # a checkpoint is saved, which may take any time
    clock.at(1000, functools.partial(dog.expect, "The batch of update", 9))
    with pytest.raises(Ended) as ended:
        dog._watch(closed, 20.0)  # what the thread of `watching` runs
    message, code = ended.value.args
    assert message.startswith("The batch of update 9 has not ended within train.step_timeout = 20 s. The stacks of")
    assert code == 1
    assert 1020 < clock.now() <= 1022
    assert "test_an_update_that_does_not_end" in (tmp_path / "process_0.txt").read_text()


def until(true, seconds=60):
    """Waits until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_leave_is_taken_for_good():
    store = Store()
    one = heartbeat.Heartbeat(ProcessGroup(store, 1, 2), patience=60)
    one._interval = 0.001
    for thread in one._threads:
        thread.start()
    until(lambda: json.loads(store.values.get("vortaro/beats/1", "[0]"))[0] > 2)
    one.close()
    assert not any(thread.is_alive() for thread in one._threads)  # none is left that could take the leave back
    assert store.values["vortaro/beats/1"] == "gone"


class Chip(NamedTuple):
    id: int
    process_index: int


def test_rows_of_hosts_on_a_ring():
    mesh = make_mesh({"data": 8, "model": 1}, "ring", jax.devices())
    sharding = NamedSharding(mesh, P("data"))
    assert host_shards(sharding, (16, 4), 0) == (Shard(0, 1),)

    class Two:  # the same, if every two devices were a host's
        def devices_indices_map(self, shape):
            where = sharding.devices_indices_map(shape).items()
            return {Chip(device.id, device.id // 2): index for device, index in where}

    assert [host_shards(Two(), (16, 4), host) for host in range(4)] == [
        (Shard(0, 8), Shard(7, 8)),
        (Shard(1, 8), Shard(6, 8)),
        (Shard(2, 8), Shard(5, 8)),
        (Shard(3, 8), Shard(4, 8)),
    ]
