"""Fault scenarios of training runs, and checks of their final state (see `benchmarks.faults`)."""

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from testing.faults.corruption import CORRUPTIONS, INCOMPLETE
from testing.launches import PEER_TIMEOUT, Launch, differences, saved_steps

SAME, STOPPED, OTHER, SKIPPED = "same bits", "clear stop", "other", "skipped"
STEPS = 120
Shape = tuple[int, int]  # processes, virtual devices of each
ONE, TWO, TWO_BY_TWO = (1, 1), (2, 1), (2, 2)
FEW_CORRUPTIONS = list(CORRUPTIONS)[:4]
RESUME = "Run the same command again to resume"  # in every error message of a run that can resume


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one fault; `result` is SAME, STOPPED, OTHER or SKIPPED."""

    row: str
    result: str
    detail: str


@dataclasses.dataclass(frozen=True)
class FaultRecord:
    """One fault of a launch: its description, and violated guarantees (empty if none)."""

    fault: str
    violations: str = ""


Fault = Callable[[Launch], FaultRecord | None]  # None: the run had already ended


class Bench:
    """Folders of runs, reference runs without faults, and the random number generator."""

    def __init__(self, root: Path, seed: int, *, small: bool):
        self.root, self.rng, self.small = root, random.Random(seed), small
        self.longest_wait = 0.0  # seconds from a kill until the last surviving process exited
        self._cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", root / "cache"))
        self._references: dict[Shape, Path] = {}
        self._folders = 0

    def folder(self) -> Path:
        """Returns the path of a new run folder."""
        self._folders += 1
        return self.root / f"run{self._folders}"

    def launch(self, workdir: Path, shape: Shape, **options) -> Launch:
        """Starts the training command with the processes and devices of `shape`."""
        return Launch(workdir, *shape, self._cache, self.root / "logs", **options)

    def reference(self, shape: Shape) -> Path:
        """Returns the folder of a run without faults."""
        if shape not in self._references:
            workdir = self.root / f"reference{shape[0]}x{shape[1]}"
            launch = self.launch(workdir, shape)
            if any(launch.codes()):
                raise RuntimeError(f"A run without faults failed: {[launch.err(i) for i in range(shape[0])]}")
            self._references[shape] = workdir
        return self._references[shape]

    def final_differences(self, workdir: Path, shape: Shape) -> str:
        """Resumes a run until its end; returns its differences from a run without faults, or an empty string."""
        launch = self.launch(workdir, shape)
        codes = launch.codes()
        if any(codes):
            return f"the restart ended with {codes}: {[launch.err(i)[-1500:] for i in range(shape[0])]}"
        return ", ".join(f"{item} differs" for item in differences(self.reference(shape), workdir))

    def run_with_faults(self, row: str, shape: Shape, faults: Sequence[Fault], **options) -> Iterator[Outcome]:
        """Restarts one run after each fault; if its final state differs, every fault counts as a failure."""
        self.reference(shape)
        workdir, records = self.folder(), list[FaultRecord]()
        for fault in faults:
            launch = self.launch(workdir, shape, **options)
            try:
                if (record := fault(launch)) is not None:
                    records.append(record)
            finally:
                launch.send(signal.SIGKILL)
                launch.codes()
        difference = self.final_differences(workdir, shape)
        for record in records:
            violations = "; ".join(filter(None, (record.violations, difference)))
            yield Outcome(row, OTHER if violations else SAME, ": ".join(filter(None, [record.fault, violations])))


def _unexpected_exit(launch: Launch, index: int, message: str = RESUME) -> str:
    """Returns how a process exited, or an empty string if with code 1 and one error message that contains `message`."""
    code, sentence = launch.processes[index].poll(), launch.sentence(index)
    if code == 1 and sentence and message in sentence:
        return ""
    return f"process {index} exited with {code} and stderr: {launch.err(index)[-1500:] or '(empty)'}"


def _spread(number: int, count: int) -> int:
    """Returns the step of fault `number` of `count`, spread over the run."""
    return int((STEPS - 25) * (number + 0.5) / count)


def _kill(bench: Bench, number: int, count: int, *, all_at_once: bool) -> Fault:
    phase = ("starting", "updates", "saves")[number % 3]

    def fault(launch: Launch) -> FaultRecord | None:
        if phase == "starting":
            launch.until(lambda: False, bench.rng.uniform(0.5, 12))
        elif not launch.reach(_spread(number, count)):
            return None
        elif phase == "updates":
            time.sleep(bench.rng.uniform(0, 0.3))
        elif not launch.until(launch.saving):
            return None
        else:
            time.sleep(bench.rng.uniform(0, 0.05))
        if not launch.running():
            return None
        index = None if all_at_once else bench.rng.randrange(len(launch.processes))
        saving, step = phase != "starting" and launch.saving(), launch.step()
        launch.send(signal.SIGKILL, index)
        began = time.monotonic()
        launch.codes()
        bench.longest_wait = max(bench.longest_wait, time.monotonic() - began)
        survivors = [i for i in range(len(launch.processes)) if index is not None and i != index]
        # Process 0 may exit before the others have connected: then their message mentions no checkpoint.
        violations = [_unexpected_exit(launch, i, "" if phase == "starting" else RESUME) for i in survivors]
        moment = f"{phase}, at metrics of step {step}" + (", with a save under way" if saving else "")
        return FaultRecord(
            f"process {'all' if index is None else index}, {moment}", "; ".join(filter(None, violations))
        )

    return fault


def kills(bench: Bench) -> Iterator[Outcome]:
    """SIGKILL at random moments."""
    rows = [
        ("SIGKILL: the only process", ONE, (3,) if bench.small else (8, 7), True),
        ("SIGKILL: one of 2 processes", TWO, () if bench.small else (7, 6), False),
        ("SIGKILL: one of 2 processes with 2 devices each", TWO_BY_TWO, () if bench.small else (7,), False),
        ("SIGKILL: 2 processes at once", TWO, () if bench.small else (8, 7), True),
    ]
    for row, shape, counts, all_at_once in rows:
        for count in counts:
            faults = [_kill(bench, number, count, all_at_once=all_at_once) for number in range(count)]
            yield from bench.run_with_faults(row, shape, faults)


def _signal(bench: Bench, number: int, at: int, code: int) -> Fault:
    def fault(launch: Launch) -> FaultRecord | None:
        if not launch.reach(at):
            return None
        index = bench.rng.randrange(len(launch.processes))
        launch.send(number, index)
        codes = launch.codes()
        fault = f"{signal.Signals(number).name} to process {index} at metrics of step {at}"
        saved = saved_steps(launch.workdir)[-1:]
        if codes != [code] * len(codes):
            return FaultRecord(fault, f"exit codes {codes}, {launch.err(0)[-1500:]}")
        message = f"saved step {saved[0] if saved else None} in "
        violations = "" if message in launch.out() else f"newest checkpoint {saved}, {launch.out()[-300:]}"
        return FaultRecord(fault, violations)

    return fault


def signals(bench: Bench) -> Iterator[Outcome]:
    """SIGTERM, SIGUSR1 or SIGINT to a random process."""
    term, usr1, interrupt = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
    # Early in a run: agreement on a step takes a second or two, and the run must not end in the meantime.
    for numbers in [[term, usr1]] if bench.small else [[term, term, usr1, term, interrupt]] * 2:
        of_two = [_signal(bench, number, 4 + 10 * i, 0) for i, number in enumerate(numbers)]
        yield from bench.run_with_faults("SIGTERM, SIGUSR1 or SIGINT to one of 2 processes", TWO, of_two)
    alone = [] if bench.small else [(term, 0), (usr1, 0), (interrupt, 130)]
    of_one = [_signal(bench, number, 4 + 10 * i, code) for i, (number, code) in enumerate(alone)]
    if alone:
        yield from bench.run_with_faults("SIGTERM, SIGUSR1 or SIGINT to the only process", ONE, of_one)


def _corrupt_newest(bench: Bench, name: str, shape: Shape) -> Outcome:
    row, detail = "newest checkpoint damaged", f"{name}, {shape[0]} process{'es' if shape[0] > 1 else ''}"
    workdir = shutil.copytree(bench.reference(shape), bench.folder())
    CORRUPTIONS[name](workdir / "checkpoints" / str(STEPS), bench.rng)
    launch = bench.launch(workdir, shape)
    codes, out = launch.codes(), launch.out()
    if any(codes):
        return Outcome(row, OTHER, f"{detail}: {codes}, {launch.err(0)[-1500:]}")
    violations = differences(bench.reference(shape), workdir)
    is_reported = f"Checkpoint {STEPS} is damaged and skipped" in out
    is_moved = (workdir / "damaged_checkpoints" / str(STEPS)).is_dir()
    if f"Resumed at step {STEPS} " in out:
        detail += " (no array is affected: it is restored completely)"  # else `differences` reports it
    elif f"Resumed at step {STEPS - 10} " not in out or (name != INCOMPLETE and not (is_reported and is_moved)):
        violations.append(f"it was not moved aside and reported: {out[:1500]}")
    return Outcome(row, OTHER if violations else SAME, ": ".join([detail, *violations]))


def corruptions(bench: Bench) -> Iterator[Outcome]:
    """Corruption of the newest checkpoint, or of all of them, between two launches."""
    for number, name in enumerate(FEW_CORRUPTIONS if bench.small else CORRUPTIONS):
        yield _corrupt_newest(bench, name, TWO if number % 2 and not bench.small else ONE)
    for shape in () if bench.small else (ONE, TWO):
        workdir = shutil.copytree(bench.reference(shape), bench.folder())
        steps = saved_steps(workdir)
        for step in steps:
            CORRUPTIONS["every file empty"](workdir / "checkpoints" / str(step), bench.rng)
        launch = bench.launch(workdir, shape)
        codes = launch.codes()
        moved = sorted(int(path.name) for path in (workdir / "damaged_checkpoints").glob("*"))
        is_clear_stop = codes == [2] * len(codes) and "None of the checkpoints" in launch.sentence(0) and moved == steps
        yield Outcome(
            "all checkpoints damaged", STOPPED if is_clear_stop else OTHER, f"{codes}, {launch.err(0)[-1500:]}"
        )


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[str]:
    """Context in which the folder is a disk of 24 MiB; yields the reason if it cannot be mounted, else ''."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    try:
        mount = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        yield f"the mount command is missing: {error}"
        return
    if mount.returncode:
        yield f"a small tmpfs cannot be mounted: {mount.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(folder: Path, free: int) -> None:
    """Fills a disk until `free` bytes are free."""
    with (folder / "filler").open("wb", buffering=0) as file:
        disk = os.statvfs(folder)
        with contextlib.suppress(OSError):
            file.write(bytes(max(0, disk.f_bavail * disk.f_bsize - free)))


def _on_full_disk(bench: Bench, disk: Path, shape: Shape, kibibytes: int) -> Outcome:
    workdir = disk / "run"
    launch = bench.launch(workdir, shape)
    row, detail = "disk full, then space again", f"{shape[0]} processes, {kibibytes} KiB left"
    if not launch.reach(bench.rng.randint(21, 60)):
        return Outcome(row, OTHER, f"{detail}: training did not start, {launch.err(0)[-1500:]}")
    _fill(disk, kibibytes * 1024)
    launch.codes()
    violations = [_unexpected_exit(launch, i) for i in range(shape[0])]
    steps = saved_steps(workdir)
    (disk / "filler").unlink()
    detail += f", stopped with checkpoints {steps}: {launch.sentence(0)}"
    violations += [bench.final_differences(workdir, shape)]
    return Outcome(row, OTHER if any(violations) else SAME, "; ".join(filter(None, [detail, *violations])))


def full_disks(bench: Bench) -> Iterator[Outcome]:
    """A full disk of the workdir."""
    trials = [(ONE, 0), (ONE, 60), (ONE, 200), (TWO, 0), (TWO, 150)]
    for number, (shape, kibibytes) in enumerate(trials[1:2] if bench.small else trials):
        bench.reference(shape)
        disk = bench.root / f"disk{number}"
        with _small_disk(disk) as reason:
            if reason:
                yield Outcome("disk full, then space again", SKIPPED, reason)
                return
            yield _on_full_disk(bench, disk, shape, kibibytes)


def _pauses(bench: Bench, count: int, pauses: list[str]) -> Fault:
    """Pauses a random process for some seconds, `count` times, and lets the run end; describes each in `pauses`."""

    def fault(launch: Launch) -> FaultRecord | None:
        for at in [_spread(number, count) for number in range(count)]:
            if not launch.reach(at):
                break
            index, seconds = bench.rng.randrange(len(launch.processes)), bench.rng.uniform(1, PEER_TIMEOUT * 0.5)
            launch.send(signal.SIGSTOP, index)
            time.sleep(seconds)
            launch.send(signal.SIGCONT, index)
            pauses.append(f"process {index} for {seconds:.1f} s")
        codes = launch.codes()
        violations = f"exit codes {codes}: {[launch.err(i) for i in range(len(codes))]}" if any(codes) else ""
        return FaultRecord("", violations)

    return fault


def _halt(bench: Bench, index: int, message: str, stacks: bool = False) -> Fault:
    """Stops a process until the other one exits."""

    def fault(launch: Launch) -> FaultRecord | None:
        if not launch.reach(21):
            return None
        launch.send(signal.SIGSTOP, index)
        began = time.monotonic()
        launch.until(lambda: launch.processes[1 - index].poll() is not None, 120)
        waited = time.monotonic() - began
        violations = [_unexpected_exit(launch, 1 - index, message)]
        launch.send(signal.SIGCONT, index)
        launch.codes(90)
        violations.append(_unexpected_exit(launch, index, ""))
        if stacks and not list((launch.workdir / "stacks").glob("process_*.txt")):
            violations.append("no stacks were written")
        description = f"process {index}; the other exited after {waited:.0f} s"
        return FaultRecord(description, "; ".join(filter(None, violations)))

    return fault


def slow_hosts(bench: Bench) -> Iterator[Outcome]:
    """A stopped process, for less than --peer_timeout and for longer."""
    pauses: list[str] = []
    row = f"one of 2 processes stopped for less than half of --peer_timeout={PEER_TIMEOUT}"
    for outcome in bench.run_with_faults(row, TWO, [_pauses(bench, 2 if bench.small else 10, pauses)]):
        for pause in pauses:
            yield dataclasses.replace(outcome, detail=": ".join(filter(None, [pause, outcome.detail])))
    halts = [_halt(bench, index, RESUME) for index in ((1,) if bench.small else (0, 1, 0, 1))]
    yield from bench.run_with_faults("one of 2 processes stopped for longer", TWO, halts)


def stuck_updates(bench: Bench) -> Iterator[Outcome]:
    """A process stopped in an update, with a --peer_timeout too long to detect it."""
    stuck = [_halt(bench, index, "has not ended within", stacks=True) for index in ((1,) if bench.small else (1, 0, 1))]
    row = "an update that does not end (STEP_TIMEOUT=6, --peer_timeout=600)"
    yield from bench.run_with_faults(row, TWO, stuck, settings=("STEP_TIMEOUT=6",), peer_timeout=600)


KINDS: dict[str, Callable[[Bench], Iterator[Outcome]]] = {
    "kill": kills,
    "signal": signals,
    "corruption": corruptions,
    "full": full_disks,
    "slow": slow_hosts,
    "stuck": stuck_updates,
}
