"""Which rows the hosts of a TPU slice read: all of them, each host those that its chips hold."""

import json

from tests.support.compilers import needs_tpu_compiler

pytestmark = needs_tpu_compiler
# Slice, entry, and a mesh of its own where that of the entry is not the point.
SLICES = [
    ("v3:8x8", "gshard.DenseLm128B8x8", None),
    ("v3:16x16", "gshard.DenseLm128B16x16", None),
    ("v4:4x4x4", "vq.VQLarge", None),
    ("v4:2x2x4", "gpt.GptBase", [16, 1]),
    ("v4:4x4x4", "gpt.GptBase", [16, 4]),
    ("v5e:4x4", "gpt.GptBase", [16, 1]),
    ("v5e:8x8", "gpt.GptBase", [64, 1]),
]
# In a process of its own: the fake devices of the slice must exist before JAX searches for others.
ROWS = """
import json, sys
from jax.sharding import NamedSharding
from layers.specs import P
from registry.resolve import resolve
from runners.host_batches import host_shards
from runners.mesh import make_mesh
from runners.planner.topologies import topology_devices

found = []
for name, entry, sizes in json.loads(sys.argv[1]):
    experiment, devices = resolve(entry, []), topology_devices(name)
    shape = experiment.mesh_shape(len(devices)) if sizes is None else dict(zip(("data", "model"), sizes))
    mesh = make_mesh(shape, experiment.DEVICE_ORDER, devices)
    rows = 4 * len(devices)
    sharding = NamedSharding(mesh, experiment.layout.activations["tokens_bs"])
    held = {}
    for device, index in sharding.devices_indices_map((rows, experiment.SEQ_LEN)).items():
        held.setdefault(device.process_index, set()).update(range(*index[0].indices(rows)))
    read = {}
    for host in held:
        shards = host_shards(sharding, (rows, experiment.SEQ_LEN), host)
        read[host] = [row for shard in shards for row in shard.rows(rows)]
    exact = all(sorted(held[host]) == read[host] for host in held)
    found.append({"exact": exact, "all": set().union(*read.values()) == set(range(rows)), "hosts": len(held)})
print(json.dumps(found))
"""


def test_hosts_read_the_rows_that_their_chips_hold(command, tmp_path):
    (tmp_path / "rows_of_hosts.py").write_text(ROWS)
    done = command("rows_of_hosts", json.dumps(SLICES), JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [each["hosts"] for each in found] == [16, 64, 16, 4, 16, 4, 16]
    assert all(each["exact"] and each["all"] for each in found), found
