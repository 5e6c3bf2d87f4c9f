"""Faults of object stores while a run trains to them."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from testing.faults.bench import SKIPPED, Bench, Fault, FaultRecord, Outcome, Shape, unexpected_exit
from testing.faults.store_proxy import CUT, DENIED, LOST, SILENT, UNAVAILABLE, StoreProxy, proxied
from testing.launches import Launch
from testing.object_stores import BUCKET, google, google_environment, missing_package

FEWER_SAVES = ("SAVE_EVERY=20",)  # each takes 2 s on the fake store
LONGEST = 90.0  # seconds until an outage must have met a request
ROW = "gs:// unavailable, silent, interrupting writes, losing answers or denying them, for 0.5 to 3 s"


def _outages(bench: Bench, proxy: StoreProxy, pending: list[str]) -> Fault:
    """Takes outages from `pending`, one after another, until the run ends."""

    def fault(launch: Launch) -> Sequence[FaultRecord]:
        records = []
        while pending and launch.reach(launch.step() + 1):
            outage, step, failed = pending.pop(0), launch.step(), proxy.failed
            proxy.outage = outage
            met = launch.until(lambda before=failed: proxy.failed > before, LONGEST)
            seconds = bench.rng.uniform(0.5, 3.0)
            time.sleep(seconds)
            proxy.outage = None
            if not met:
                break  # the run ended, or wrote nothing more
            detail = f"{outage}, {proxy.failed - failed} requests in {seconds:.1f} s at metrics of step {step}"
            records.append(FaultRecord(detail))
            if outage == DENIED:
                launch.codes()
        codes = launch.codes() if launch.running() and not pending else [each.poll() for each in launch.processes]
        stops = [unexpected_exit(launch, i, "", (1, 2)) for i, code in enumerate(codes) if code not in (0, None)]
        if records and any(codes):
            stop = f"stopped: {launch.sentence(0)}"
            records[-1] = FaultRecord(f"{records[-1].fault}, {stop}", "; ".join(filter(None, stops)))
        return records

    return fault


@contextlib.contextmanager
def store(bench: Bench) -> Iterator[tuple[StoreProxy, Callable[[str], Path]]]:
    """Yields a proxy of a new fake gs://bucket, and a function that copies a folder of it to this disk."""
    from gcsfs.core import GCSFileSystem

    with google() as environment, proxied(environment["STORAGE_EMULATOR_HOST"]) as proxy:
        files = GCSFileSystem(endpoint_url=proxy.address, token="anon", use_listings_cache=False)

        def local(workdir: str) -> Path:
            copy = bench.folder()
            files.get(f"{workdir}/", f"{copy}/", recursive=True)
            return copy

        yield proxy, local


def failing_stores(bench: Bench) -> Iterator[Outcome]:
    """A store that fails for seconds, several times in a run."""
    if package := missing_package("gs"):
        yield bench.outcome(ROW, SKIPPED, f"the package {package} is missing")
        return
    few = [UNAVAILABLE, DENIED]
    chains: list[tuple[Shape, list[str]]] = [
        (bench.alone, few if bench.small else [UNAVAILABLE, CUT, LOST, SILENT, DENIED, UNAVAILABLE]),
        (bench.pair, [] if bench.small else [LOST, SILENT, CUT, UNAVAILABLE, DENIED, CUT]),
    ]
    with store(bench) as (proxy, local):
        for shape, pending in chains:
            if not pending:
                continue
            workdir = f"gs://{BUCKET}/{bench.run.name}{shape[0]}"
            launches = itertools.repeat(_outages(bench, proxy, pending), len(pending))
            faults = itertools.takewhile(lambda _, left=pending: left, launches)
            options: dict[str, Any] = {"environment": google_environment(proxy.address), "workdir": workdir}
            options |= {"local": lambda folder=workdir: local(folder), "settings": FEWER_SAVES}
            yield from bench.run_with_faults(ROW, shape, faults, **options)
