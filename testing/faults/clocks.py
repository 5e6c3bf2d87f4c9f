"""Faults of clocks: the wall clocks of processes jump, during a run and between its launches."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testing.faults import shifted_clock
from testing.faults.bench import Bench, Fault, FaultRecord, Outcome, spread
from testing.faults.stores import FEWER_SAVES, store
from testing.launches import Launch, saved_steps
from testing.object_stores import BUCKET, google_environment, missing_package

HOUR, DAY = 3600, 24 * 3600
JUMPS = (HOUR, -HOUR, DAY, -DAY, 30 * DAY)
DURING, BETWEEN, STORE = (
    "clock of a process jumps by an hour to 30 days: during a run that saves by time",
    "clock of a process jumps by an hour to 30 days: between two launches, after SIGKILL",
    "clock of a process jumps by an hour to 30 days: during a run to gs://, which renews its lease",
)


def _set(clocks: Path, index: int, seconds: int) -> None:
    """Sets the offset of a process's clock; the file is complete at each moment."""
    part = clocks / f"{index}.part"
    part.write_text(str(seconds))
    part.rename(clocks / str(index))


def _jumps(bench: Bench, clocks: Path, jumps: Sequence[int], *, saves: bool) -> Fault:
    """Lets the clock of a random process jump several times, and the run end; `saves`: one must follow each jump."""

    def fault(launch: Launch) -> Sequence[FaultRecord]:
        records = []
        for number, seconds in enumerate(jumps):
            if not launch.reach(max(spread(number, len(jumps)), launch.step() + 1)):
                break
            index, step = bench.rng.randrange(len(launch.processes)), launch.step()
            _set(clocks, index, seconds)
            is_saved = not saves or launch.until(lambda at=step: saved_steps(launch.workdir)[-1:] > [at], 30)
            violations = "" if is_saved or not launch.running() else "no checkpoint within 30 s of the jump"
            records.append(FaultRecord(f"process {index} by {seconds} s at metrics of step {step}", violations))
        codes = launch.codes()
        violations = f"exit codes {codes}: {[launch.err(i) for i in range(len(codes))]}" if any(codes) else ""
        return [FaultRecord(each.fault, "; ".join(filter(None, (each.violations, violations)))) for each in records]

    return fault


def _kill_and_jump(clocks: Path, seconds: int, at: int) -> Fault:
    """Kills a run; the next launch has another clock."""

    def fault(launch: Launch) -> Sequence[FaultRecord]:
        if not launch.reach(at):
            return []
        launch.send(signal.SIGKILL)
        launch.codes()
        _set(clocks, 0, seconds)
        return [FaultRecord(f"{seconds} s after metrics of step {at}")]

    return fault


def jumping_clocks(bench: Bench) -> Iterator[Outcome]:
    """Wall clocks that jump, in local runs and in one on a store."""
    clocks = bench.root / "clocks"
    clocks.mkdir(exist_ok=True)
    shifted: dict[str, Any] = {"module": shifted_clock.__name__}
    local = {**shifted, "environment": {shifted_clock.FOLDER: str(clocks)}}
    jumps = JUMPS[1:3] if bench.small else JUMPS
    by_time = ("SAVE_EVERY=60", "SAVE_MINUTES=0.005")
    for shape in (bench.alone,) if bench.small else (bench.alone, bench.pair):
        fault = _jumps(bench, clocks, jumps, saves=True)
        yield from bench.run_with_faults(DURING, shape, [fault], settings=by_time, **local)
    faults = [_kill_and_jump(clocks, seconds, 10 + 20 * i) for i, seconds in enumerate((-DAY, DAY)[: len(jumps) - 1])]
    yield from bench.run_with_faults(BETWEEN, bench.alone, faults, **local)
    if missing_package("gs") or bench.small:
        return
    with store(bench) as (proxy, copied):
        workdir = f"gs://{BUCKET}/{bench.run.name}"
        environment = {**local["environment"], **google_environment(proxy.address)}
        on_store: dict[str, Any] = {**shifted, "environment": environment, "workdir": workdir}
        on_store |= {"local": lambda: copied(workdir), "settings": FEWER_SAVES}
        fault = _jumps(bench, clocks, jumps, saves=False)
        yield from bench.run_with_faults(STORE, bench.alone, [fault], **on_store)
