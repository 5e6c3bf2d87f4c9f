"""Updates that are computed twice: nothing changes without a fault, and a flipped bit is reported with its process."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from layers.specs import P
from runners.training.checkpoint_parts.checksums import checksums_by_device
from runners.training.health import replayed_update
from testing.launches import differences
from tests.support.processes.starting import finish, run, start

SETTINGS = ("NUM_STEPS=6", "SAVE_EVERY=3", "EVAL_EVERY=none", "LOG_EVERY=2", "DROPOUT=0.1", "EVAL_ROWS=8")
FLAGS = ["--smoke", "--no-tensorboard", *(f"--set={setting}" for setting in SETTINGS)]
FLIPPED = """
import jax
import jax.numpy as jnp
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from runners.training.health import replayed_update

@register
class Flipped(StdlibTiny):
    '''The second result of update 4 has another bit on process 1.'''

def flipped(state, mesh, before=replayed_update.checksums_by_device, calls=[]):
    calls.append(1)
    found = before(state, mesh)
    if len(calls) == 4 and jax.process_index() == 1:
        [numbers] = found.values()
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
        numbers[next(i for i, path in enumerate(paths) if "ffn_out_fm" in path)] ^= 1
    return found

replayed_update.checksums_by_device = flipped
"""


def test_the_message_names_processes_arrays_and_devices():
    fine = {"name": "process 0 (a)", "different": {}}
    odd = {"name": "process 1 (b)", "different": {"cpu:1": ["params/x", "params/y"], "cpu:2": ["params/x"]}}
    assert replayed_update.difference(9, [fine, fine]) == ""
    assert replayed_update.difference(9, [fine, odd]).startswith(
        "Process 1 (b) computed other bits when update 9 was computed twice: params/x, params/y on cpu:1, cpu:2. A "
    )
    all_differ = [{"name": f"process {i} (b)", "different": {"cpu:1": list("abcde")}} for i in range(3)]
    assert "twice (and 2 of 3 processes): a, b, c and 2 more on cpu:1." in replayed_update.difference(9, all_differ)


def test_one_flipped_bit_changes_the_checksum_of_its_device():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("data")))
    before = checksums_by_device([x], mesh)
    bits = np.array(x).view(np.uint32)
    bits[3, 4] ^= 1
    after = checksums_by_device([jax.device_put(bits.view(np.float32), x.sharding)], mesh)
    changed = [device for device in before if before[device] != after[device]]
    assert changed == [str(device) for device in mesh.devices[1]], "both devices with a copy of rows 2 and 3"


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (2, 1)])
def test_a_run_has_the_same_bits(tmp_path, processes, devices):
    for name in ("off", "on"):
        more = [f"--workdir={name}", *(["--set=REPLAY_EVERY=2"] if name == "on" else [])]
        run("runners.main", processes, devices, ["--exp=tiny.StdlibTiny", *FLAGS, *more], tmp_path)
    assert differences(tmp_path / "off", tmp_path / "on") == []


def test_a_flipped_bit_stops_a_run_without_a_checkpoint(inside, tmp_path, monkeypatch):
    calls = []

    def flipped(state, mesh, before=replayed_update.checksums_by_device):
        calls.append(1)
        found = before(state, mesh)
        if len(calls) == 4:
            [numbers] = found.values()
            numbers[0] ^= 1
        return found

    monkeypatch.setattr(replayed_update, "checksums_by_device", flipped)
    done = inside("runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *FLAGS, "--set=REPLAY_EVERY=2")
    assert done.returncode == 1
    assert "computed other bits when update 4 was computed twice: step on cpu:0. A device or" in done.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["3"]


@pytest.mark.slow
def test_a_flipped_bit_is_reported_with_its_process(tmp_path):
    (tmp_path / "flipped.py").write_text(FLIPPED)
    arguments = ["--exp=flipped.Flipped", *FLAGS, "--set=REPLAY_EVERY=2", "--workdir=run"]
    ended = finish(start("runners.main", 2, 1, arguments, tmp_path), timeout=600)
    assert [process.returncode for process in ended] == [1, 1], ended[0].stderr
    assert "Process 1 (" in ended[0].stderr
    message = ") computed other bits when update 4 was computed twice: params/stack/block/ffn/ffn_out_fm on cpu:"
    assert message in ended[0].stderr
    assert "Traceback" not in ended[0].stderr
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["3"]
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] <= 4
