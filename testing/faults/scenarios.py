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

from testing.faults.corruption import DAMAGES, TORN
from testing.launches import PEER_TIMEOUT, Launch, differing, saved_steps

SAME, STOPPED, OTHER, SKIPPED = "same bits", "clear stop", "other", "skipped"
STEPS = 120
Shape = tuple[int, int]  # processes, virtual devices of each
ONE, TWO, TWO_BY_TWO = (1, 1), (2, 1), (2, 2)
FEW_DAMAGES = list(DAMAGES)[:4]
GO_ON = "Run the same command again to resume"  # in every error message of a run that can resume


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one fault; `result` is SAME, STOPPED, OTHER or SKIPPED."""

    row: str
    result: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Done:
    """One fault of a launch: its description, and violated guarantees (empty if none)."""

    what: str
    wrong: str = ""


Disturb = Callable[[Launch], Done | None]  # None: the run had already ended


class Bench:
    """Folders of runs, reference runs without faults, and the random number generator."""

    def __init__(self, root: Path, seed: int, *, small: bool):
        self.root, self.rng, self.small = root, random.Random(seed), small
        self.longest_wait = 0.0  # seconds from a kill until the last surviving process exited
        self._cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", root / "cache"))
        self._calm: dict[Shape, Path] = {}
        self._folders = 0

    def folder(self) -> Path:
        """Returns the path of a new run folder."""
        self._folders += 1
        return self.root / f"run{self._folders}"

    def launch(self, workdir: Path, shape: Shape, **options) -> Launch:
        """Starts the training command with the processes and devices of `shape`."""
        return Launch(workdir, *shape, self._cache, self.root / "logs", **options)

    def calm(self, shape: Shape) -> Path:
        """Returns the folder of a run without faults."""
        if shape not in self._calm:
            workdir = self.root / f"calm{shape[0]}x{shape[1]}"
            launch = self.launch(workdir, shape)
            if any(launch.codes()):
                raise RuntimeError(f"A run without faults failed: {[launch.err(i) for i in range(shape[0])]}")
            self._calm[shape] = workdir
        return self._calm[shape]

    def ended_alike(self, workdir: Path, shape: Shape) -> str:
        """Resumes a run until its end; returns its differences from a run without faults, or an empty string."""
        launch = self.launch(workdir, shape)
        codes = launch.codes()
        if any(codes):
            return f"the restart ended with {codes}: {[launch.err(i)[-1500:] for i in range(shape[0])]}"
        return ", ".join(f"{what} differs" for what in differing(self.calm(shape), workdir))

    def chain(self, row: str, shape: Shape, disturbances: Sequence[Disturb], **options) -> Iterator[Outcome]:
        """Restarts one run after each fault; if its final state differs, every fault counts as a failure."""
        self.calm(shape)
        workdir, done = self.folder(), list[Done]()
        for disturb in disturbances:
            launch = self.launch(workdir, shape, **options)
            try:
                if (what := disturb(launch)) is not None:
                    done.append(what)
            finally:
                launch.send(signal.SIGKILL)
                launch.codes()
        end = self.ended_alike(workdir, shape)
        for each in done:
            wrong = "; ".join(filter(None, (each.wrong, end)))
            yield Outcome(row, OTHER if wrong else SAME, f"{each.what}{': ' if wrong else ''}{wrong}")


def _complaint(launch: Launch, index: int, message: str = GO_ON) -> str:
    """Returns how a process exited, or an empty string if with code 1 and one error message that contains `message`."""
    code, sentence = launch.processes[index].poll(), launch.sentence(index)
    if code == 1 and sentence and message in sentence:
        return ""
    return f"process {index} exited with {code} and stderr: {launch.err(index)[-1500:] or '(empty)'}"


def _spread(number: int, count: int) -> int:
    """Returns the step of fault `number` of `count`, spread over the run."""
    return int((STEPS - 25) * (number + 0.5) / count)


def _kill(bench: Bench, number: int, count: int, *, all_at_once: bool) -> Disturb:
    phase = ("starting", "updates", "saves")[number % 3]

    def disturb(launch: Launch) -> Done | None:
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
        left = [i for i in range(len(launch.processes)) if index is not None and i != index]
        # Process 0 may exit before the others have connected: then their message mentions no checkpoint.
        wrong = [_complaint(launch, i, "" if phase == "starting" else GO_ON) for i in left]
        where = f"{phase}, at metrics of step {step}" + (", with a save under way" if saving else "")
        return Done(f"process {'all' if index is None else index}, {where}", "; ".join(filter(None, wrong)))

    return disturb


def kills(bench: Bench) -> Iterator[Outcome]:
    """SIGKILL at random moments."""
    rows = [
        ("SIGKILL: the only process", ONE, (3,) if bench.small else (8, 7), True),
        ("SIGKILL: one of 2 processes", TWO, (2,) if bench.small else (7, 6), False),
        ("SIGKILL: one of 2 processes with 2 devices each", TWO_BY_TWO, () if bench.small else (7,), False),
        ("SIGKILL: 2 processes at once", TWO, () if bench.small else (8, 7), True),
    ]
    for row, shape, chains, all_at_once in rows:
        for count in chains:
            disturbances = [_kill(bench, number, count, all_at_once=all_at_once) for number in range(count)]
            yield from bench.chain(row, shape, disturbances)


def _notice(bench: Bench, number: int, at: int, code: int) -> Disturb:
    def disturb(launch: Launch) -> Done | None:
        if not launch.reach(at):
            return None
        index = bench.rng.randrange(len(launch.processes))
        launch.send(number, index)
        codes = launch.codes()
        what = f"{signal.Signals(number).name} to process {index} at metrics of step {at}"
        saved = saved_steps(launch.workdir)[-1:]
        if codes != [code] * len(codes):
            return Done(what, f"exit codes {codes}, {launch.err(0)[-1500:]}")
        message = f"saved step {saved[0] if saved else None} in "
        return Done(what, "" if message in launch.out() else f"newest checkpoint {saved}, {launch.out()[-300:]}")

    return disturb


def notices(bench: Bench) -> Iterator[Outcome]:
    """SIGTERM, SIGUSR1 or SIGINT to a random process."""
    term, usr1, interrupt = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
    # Early in a run: agreement on a step takes a second or two, and the run must not end in the meantime.
    for several in [[term, usr1]] if bench.small else [[term, term, usr1, term, interrupt]] * 2:
        of_two = [_notice(bench, number, 4 + 10 * i, 0) for i, number in enumerate(several)]
        yield from bench.chain("SIGTERM, SIGUSR1 or SIGINT to one of 2 processes", TWO, of_two)
    alone = [] if bench.small else [(term, 0), (usr1, 0), (interrupt, 130)]
    of_one = [_notice(bench, number, 4 + 10 * i, code) for i, (number, code) in enumerate(alone)]
    if alone:
        yield from bench.chain("SIGTERM, SIGUSR1 or SIGINT to the only process", ONE, of_one)


def _damage(bench: Bench, name: str, shape: Shape) -> Outcome:
    row, detail = "newest checkpoint damaged", f"{name}, {shape[0]} process{'es' if shape[0] > 1 else ''}"
    workdir = shutil.copytree(bench.calm(shape), bench.folder())
    DAMAGES[name](workdir / "checkpoints" / str(STEPS), bench.rng)
    launch = bench.launch(workdir, shape)
    codes, out = launch.codes(), launch.out()
    if any(codes):
        return Outcome(row, OTHER, f"{detail}: {codes}, {launch.err(0)[-1500:]}")
    wrong = differing(bench.calm(shape), workdir)
    named = f"Checkpoint {STEPS} is damaged and skipped" in out
    aside = (workdir / "damaged_checkpoints" / str(STEPS)).is_dir()
    if f"Resumed at step {STEPS} " in out:
        detail += " (no array is affected: it is restored completely)"  # else `differing` reports it
    elif f"Resumed at step {STEPS - 10} " not in out or (name != TORN and not (named and aside)):
        wrong.append(f"it was not moved aside and reported: {out[:1500]}")
    return Outcome(row, OTHER if wrong else SAME, ": ".join([detail, *wrong]))


def damages(bench: Bench) -> Iterator[Outcome]:
    """Corruption of the newest checkpoint, or of all of them, between two launches."""
    for number, name in enumerate(FEW_DAMAGES if bench.small else DAMAGES):
        yield _damage(bench, name, TWO if number % 2 and not bench.small else ONE)
    for shape in () if bench.small else (ONE, TWO):
        workdir = shutil.copytree(bench.calm(shape), bench.folder())
        steps = saved_steps(workdir)
        for step in steps:
            DAMAGES["every file empty"](workdir / "checkpoints" / str(step), bench.rng)
        launch = bench.launch(workdir, shape)
        codes = launch.codes()
        kept = sorted(int(path.name) for path in (workdir / "damaged_checkpoints").glob("*"))
        clear = codes == [2] * len(codes) and "None of the checkpoints" in launch.sentence(0) and kept == steps
        yield Outcome("all checkpoints damaged", STOPPED if clear else OTHER, f"{codes}, {launch.err(0)[-1500:]}")


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[str]:
    """Context in which the folder is a disk of 24 MiB; yields the reason if it cannot be mounted, else ''."""
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    try:
        mounted = subprocess.run(asked, capture_output=True, text=True)
    except OSError as error:
        yield f"the mount command is missing: {error}"
        return
    if mounted.returncode:
        yield f"a small tmpfs cannot be mounted: {mounted.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(folder: Path, left: int) -> None:
    """Fills a disk until `left` bytes are free."""
    with (folder / "filler").open("wb", buffering=0) as file:
        at = os.statvfs(folder)
        with contextlib.suppress(OSError):
            file.write(bytes(max(0, at.f_bavail * at.f_bsize - left)))


def _on_full_disk(bench: Bench, disk: Path, shape: Shape, kibibytes: int) -> Outcome:
    workdir = disk / "run"
    launch = bench.launch(workdir, shape)
    row, detail = "disk full, then space again", f"{shape[0]} processes, {kibibytes} KiB left"
    if not launch.reach(bench.rng.randint(21, 60)):
        return Outcome(row, OTHER, f"{detail}: training did not start, {launch.err(0)[-1500:]}")
    _fill(disk, kibibytes * 1024)
    launch.codes()
    wrong = [_complaint(launch, i) for i in range(shape[0])]
    kept = saved_steps(workdir)
    (disk / "filler").unlink()
    detail += f", stopped with checkpoints {kept}: {launch.sentence(0)}"
    wrong += [bench.ended_alike(workdir, shape)]
    return Outcome(row, OTHER if any(wrong) else SAME, "; ".join(filter(None, [detail, *wrong])))


def full_disks(bench: Bench) -> Iterator[Outcome]:
    """A full disk of the workdir."""
    trials = [(ONE, 0), (ONE, 60), (ONE, 200), (TWO, 0), (TWO, 150)]
    for number, (shape, kibibytes) in enumerate(trials[1:2] if bench.small else trials):
        bench.calm(shape)
        disk = bench.root / f"disk{number}"
        with _small_disk(disk) as unable:
            if unable:
                yield Outcome("disk full, then space again", SKIPPED, unable)
                return
            yield _on_full_disk(bench, disk, shape, kibibytes)


def _pauses(bench: Bench, count: int, whats: list[str]) -> Disturb:
    """Pauses a random process for some seconds, `count` times, and lets the run end."""

    def disturb(launch: Launch) -> Done | None:
        for at in [_spread(number, count) for number in range(count)]:
            if not launch.reach(at):
                break
            index, seconds = bench.rng.randrange(len(launch.processes)), bench.rng.uniform(1, PEER_TIMEOUT * 0.5)
            launch.send(signal.SIGSTOP, index)
            time.sleep(seconds)
            launch.send(signal.SIGCONT, index)
            whats.append(f"process {index} for {seconds:.1f} s")
        codes = launch.codes()
        return Done("", f"exit codes {codes}: {[launch.err(i) for i in range(len(codes))]}" if any(codes) else "")

    return disturb


def _halt(bench: Bench, index: int, message: str, stacks: bool = False) -> Disturb:
    """Stops a process until the other one exits."""

    def disturb(launch: Launch) -> Done | None:
        if not launch.reach(21):
            return None
        launch.send(signal.SIGSTOP, index)
        began = time.monotonic()
        launch.until(lambda: launch.processes[1 - index].poll() is not None, 120)
        waited = time.monotonic() - began
        wrong = [_complaint(launch, 1 - index, message)]
        launch.send(signal.SIGCONT, index)
        launch.codes(90)
        wrong.append(_complaint(launch, index, ""))
        if stacks and not list((launch.workdir / "stacks").glob("process_*.txt")):
            wrong.append("no stacks were written")
        return Done(f"process {index}; the other exited after {waited:.0f} s", "; ".join(filter(None, wrong)))

    return disturb


def slow_hosts(bench: Bench) -> Iterator[Outcome]:
    """A stopped process, for less than --peer_timeout and for longer."""
    whats: list[str] = []
    row = f"one of 2 processes stopped for less than half of --peer_timeout={PEER_TIMEOUT}"
    for outcome in bench.chain(row, TWO, [_pauses(bench, 2 if bench.small else 10, whats)]):
        for what in whats:
            yield dataclasses.replace(outcome, detail=f"{what}{outcome.detail}")
    halts = [_halt(bench, index, GO_ON) for index in ((1,) if bench.small else (0, 1, 0, 1))]
    yield from bench.chain("one of 2 processes stopped for longer", TWO, halts)


def stuck_updates(bench: Bench) -> Iterator[Outcome]:
    """A process stopped in an update, with a --peer_timeout too long to detect it."""
    stuck = [_halt(bench, index, "has not ended within", stacks=True) for index in ((1,) if bench.small else (1, 0, 1))]
    row = "an update that does not end (STEP_TIMEOUT=6, --peer_timeout=600)"
    yield from bench.chain(row, TWO, stuck, settings=("STEP_TIMEOUT=6",), peer_timeout=600)


KINDS: dict[str, Callable[[Bench], Iterator[Outcome]]] = {
    "kill": kills,
    "notice": notices,
    "damage": damages,
    "full": full_disks,
    "slow": slow_hosts,
    "stuck": stuck_updates,
}
