"""Faults of processes: killed, signalled, paused and stuck ones."""

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from testing.faults.bench import RESUME, Bench, Fault, FaultRecord, Outcome, spread, unexpected_exit
from testing.launches import PEER_TIMEOUT, Launch, saved_steps


def _kill(bench: Bench, number: int, count: int, *, all_at_once: bool) -> Fault:
    phase = ("starting", "updates", "saves")[number % 3]

    def fault(launch: Launch) -> Sequence[FaultRecord]:
        if phase == "starting":
            launch.until(lambda: launch.step() > 0, bench.rng.uniform(0.5, 12))  # at the latest at the first metrics
        elif not launch.reach(spread(number, count)):
            return []
        elif phase == "updates":
            time.sleep(bench.rng.uniform(0, 0.3))
        elif not launch.until(launch.saving):
            return []
        else:
            time.sleep(bench.rng.uniform(0, 0.05))
        if not launch.running():
            return []
        index = None if all_at_once else bench.rng.randrange(len(launch.processes))
        saving, step = phase != "starting" and launch.saving(), launch.step()
        launch.send(signal.SIGKILL, index)
        began = time.monotonic()
        launch.codes()
        bench.longest_wait = max(bench.longest_wait, time.monotonic() - began)
        survivors = [i for i in range(len(launch.processes)) if index is not None and i != index]
        # Process 0 may exit before the others have connected: then their message mentions no checkpoint.
        violations = [unexpected_exit(launch, i, "" if phase == "starting" else RESUME) for i in survivors]
        moment = f"{phase}, at metrics of step {step}" + (", with a save under way" if saving else "")
        process = "all" if index is None else index
        return [FaultRecord(f"process {process}, {moment}", "; ".join(filter(None, violations)))]

    return fault


def kills(bench: Bench) -> Iterator[Outcome]:
    """SIGKILL at random moments."""
    rows = [
        ("SIGKILL: the only process", bench.alone, 3 if bench.small else 4, True),
        ("SIGKILL: one of 2 processes", bench.pair, 0 if bench.small else 3, False),
        ("SIGKILL: 2 processes at once", bench.pair, 0 if bench.small else 3, True),
    ]
    for row, shape, count, all_at_once in rows:
        if count:
            faults = [_kill(bench, number, count, all_at_once=all_at_once) for number in range(count)]
            yield from bench.run_with_faults(row, shape, faults)


def _signal(bench: Bench, number: int, at: int) -> Fault:
    def fault(launch: Launch) -> Sequence[FaultRecord]:
        if not launch.reach(at):
            return []
        index = bench.rng.randrange(len(launch.processes))
        launch.send(number, index)
        codes = launch.codes()
        fault = f"{signal.Signals(number).name} to process {index} at metrics of step {at}"
        saved = saved_steps(launch.workdir)[-1:]
        wanted = [130 if number == signal.SIGINT and other == index else 0 for other in range(len(codes))]
        if codes != wanted:
            return [FaultRecord(fault, f"exit codes {codes}, {launch.err(0)[-1500:]}")]
        message = f"saved step {saved[0] if saved else None} in "
        violations = "" if message in launch.out() else f"newest checkpoint {saved}, {launch.out()[-300:]}"
        return [FaultRecord(fault, violations)]

    return fault


def signals(bench: Bench) -> Iterator[Outcome]:
    """SIGTERM, SIGUSR1 or SIGINT to a random process."""
    term, usr1, interrupt = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
    # Early in a run: agreement on a step takes a second or two, and the run must not end in the meantime.
    numbers = [term, usr1] if bench.small else [term, usr1, interrupt]
    of_two = [_signal(bench, number, 4 + 10 * i) for i, number in enumerate(numbers)]
    yield from bench.run_with_faults("SIGTERM, SIGUSR1 or SIGINT to one of 2 processes", bench.pair, of_two)
    if not bench.small:
        of_one = [_signal(bench, number, 4 + 10 * i) for i, number in enumerate((term, interrupt))]
        yield from bench.run_with_faults("SIGTERM, SIGUSR1 or SIGINT to the only process", bench.alone, of_one)


def _pauses(bench: Bench, count: int) -> Fault:
    """Pauses a random process for some seconds, `count` times, and lets the run end."""

    def fault(launch: Launch) -> Sequence[FaultRecord]:
        pauses = []
        for at in [spread(number, count) for number in range(count)]:
            if not launch.reach(at):
                break
            index, seconds = bench.rng.randrange(len(launch.processes)), bench.rng.uniform(1, PEER_TIMEOUT * 0.5)
            launch.send(signal.SIGSTOP, index)
            time.sleep(seconds)
            launch.send(signal.SIGCONT, index)
            pauses.append(f"process {index} for {seconds:.1f} s")
        codes = launch.codes()
        violations = f"exit codes {codes}: {[launch.err(i) for i in range(len(codes))]}" if any(codes) else ""
        return [FaultRecord(pause, violations) for pause in pauses]

    return fault


def _halt(index: int, message: str, *, stacks: bool = False) -> Fault:
    """Stops a process until the other one exits."""

    def fault(launch: Launch) -> Sequence[FaultRecord]:
        if not launch.reach(21):
            return []
        launch.send(signal.SIGSTOP, index)
        began = time.monotonic()
        launch.until(lambda: launch.processes[1 - index].poll() is not None, 120)
        waited = time.monotonic() - began
        violations = [unexpected_exit(launch, 1 - index, message)]
        launch.send(signal.SIGCONT, index)
        launch.codes(90)
        violations.append(unexpected_exit(launch, index, ""))
        if stacks and not list(Path(launch.workdir, "stacks").glob("process_*.txt")):
            violations.append("no stacks were written")
        description = f"process {index}; the other exited after {waited:.0f} s"
        return [FaultRecord(description, "; ".join(filter(None, violations)))]

    return fault


def slow_hosts(bench: Bench) -> Iterator[Outcome]:
    """A stopped process, for less than --peer_timeout and for longer."""
    row = f"one of 2 processes stopped for less than half of --peer_timeout={PEER_TIMEOUT}"
    yield from bench.run_with_faults(row, bench.pair, [_pauses(bench, 2 if bench.small else 8)])
    yield from bench.run_with_faults("one of 2 processes stopped for longer", bench.pair, [_halt(1, RESUME)])


def stuck_updates(bench: Bench) -> Iterator[Outcome]:
    """A process stopped in an update, with a --peer_timeout too long to detect it."""
    stuck = [_halt(1, "has not ended within", stacks=True)]
    row = "an update that does not end (STEP_TIMEOUT=6, --peer_timeout=600)"
    yield from bench.run_with_faults(row, bench.pair, stuck, settings=("STEP_TIMEOUT=6",), peer_timeout=600)
