"""Scaling of start-up with the number of machines: plans on 8 to 2048 virtual devices, agreement of up to 512 hosts.

    python -m benchmarks.scale

Each plan runs in its own process. Hosts are clients of one real coordination service, all in this process; the
benchmark counts their calls and measures the time until all have the result.
"""

import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from testing.launches import free_port

ENTRY = "gshard.DenseLm8B2x2"
DEVICES = (8, 256, 2048)
HOSTS = (2, 64, 512)
ROWS_PER_DEVICE = 2


def plan(devices: int) -> dict[str, float]:
    """Returns seconds and peak memory of preparing an update for `devices` devices; must run in its own process."""
    from runners.machine.virtual_devices import make_virtual_devices

    make_virtual_devices(devices)
    import jax

    from registry.resolve import resolve
    from runners.session import Session

    jax.devices()
    began = time.perf_counter()
    sets = [f"DEVICE_MESH_SHAPE={devices // 8},8", f"BATCH_SIZE={ROWS_PER_DEVICE * devices}", "DATA=synthetic"]
    session = Session(resolve(ENTRY, sets))
    checked = time.perf_counter()
    with session.placed():
        states = len(jax.tree.leaves(session.abstract.state))
        placed = time.perf_counter()
        session.functions.lower_step(session.abstract.batch, session.abstract.seed).compile()
    compiled = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    times = {"check": checked - began, "shapes": placed - checked, "compile": compiled - placed}
    return {"devices": devices, "arrays": states, "peak_gib": peak, **times}


class Counted:
    """Proxy of a client that counts calls."""

    def __init__(self, client: Any):
        self._client, self.calls = client, 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            return call(*arguments, **options)

        return counted


def agree(hosts: int) -> dict[str, float]:
    """Returns calls and seconds of one agreement among `hosts` hosts."""
    from jax._src import distributed as internal

    from runners.processes.coordination import ProcessGroup

    runtime: Any = vars(internal)["_jax"]  # JAX has no public name for it

    port = free_port()
    service = runtime.get_distributed_runtime_service(f"[::]:{port}", hosts, heartbeat_timeout=300, shutdown_timeout=60)
    clients = [
        runtime.get_distributed_runtime_client(f"localhost:{port}", index, init_timeout=200, heartbeat_timeout=300)
        for index in range(hosts)
    ]
    _all(client.connect for client in clients)
    counted = [Counted(client) for client in clients]
    everyone = [ProcessGroup(client, index, hosts) for index, client in enumerate(counted)]
    card = {"--exp": ENTRY, "SEED": "0", "config": "0" * 12, "code": "1" * 12}
    times = []
    for _ in range(5):
        began = time.perf_counter()
        _all((lambda one=one: one.all_agree(card)) for one in everyone)
        times.append(time.perf_counter() - began)
    calls = [client.calls / len(times) for client in counted[1:]]
    _all(client.shutdown for client in clients)
    service.shutdown()
    return {"hosts": hosts, "calls": max(calls), "seconds": statistics.median(times)}


def _all(works: Any) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: list[str]) -> int:
    """Prints both tables."""
    if arguments:
        print(json.dumps(plan(int(arguments[0]))))
        return 0
    plans = []
    for devices in DEVICES:
        done = subprocess.run([sys.executable, "-m", "benchmarks.scale", str(devices)], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return 1
        plans.append(json.loads(done.stdout.splitlines()[-1]))
    console = Console(width=120)
    table = Table(
        "devices", "config, check, mesh", "shapes and shardings", "compile", "peak memory", title=f"Plans of {ENTRY}"
    )
    for result in plans:
        seconds = [f"{result[name]:.1f} s" for name in ("check", "shapes", "compile")]
        table.add_row(str(result["devices"]), *seconds, f"{result['peak_gib']:.1f} GiB")
    console.print(table)
    table = Table("hosts", "calls per host", "time to agree", title="Agreement at the start")
    for hosts in HOSTS:
        agreement = agree(hosts)
        table.add_row(str(hosts), f"{agreement['calls']:.0f}", f"{agreement['seconds'] * 1e3:.0f} ms")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
