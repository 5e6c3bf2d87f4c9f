"""The table of faults: what disturbs a run, by name."""

from collections.abc import Callable, Iterator

from testing.faults.bench import Bench, Outcome
from testing.faults.clocks import jumping_clocks
from testing.faults.disks import corruptions, full_disks
from testing.faults.processes import kills, signals, slow_hosts, stuck_updates
from testing.faults.stores import failing_stores
from testing.faults.supervised import supervised_kills

FAULTS: dict[str, Callable[[Bench], Iterator[Outcome]]] = {
    "kill": kills,
    "supervised": supervised_kills,
    "signal": signals,
    "corruption": corruptions,
    "full": full_disks,
    "slow": slow_hosts,
    "stuck": stuck_updates,
    "store": failing_stores,
    "clock": jumping_clocks,
}
