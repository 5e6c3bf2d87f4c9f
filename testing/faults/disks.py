"""Faults of disks: damaged checkpoints, and disks without space."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from testing.faults.bench import OTHER, SAME, SKIPPED, STOPPED, Bench, Outcome, Shape, unexpected_exit
from testing.faults.corruption import CORRUPTIONS, INCOMPLETE
from testing.launches import STEPS, differences, saved_steps

DAMAGED, FULL = "newest checkpoint damaged", "disk full, then space again"


def _corrupt_newest(bench: Bench, name: str, shape: Shape) -> Outcome:
    detail = f"{name}, {shape[0]} process{'es' if shape[0] > 1 else ''}"
    workdir = shutil.copytree(bench.reference(shape), bench.folder())
    CORRUPTIONS[name](workdir / "checkpoints" / str(STEPS), bench.rng)
    launch = bench.launch(workdir, shape)
    codes, out = launch.codes(), launch.out()
    if any(codes):
        return bench.outcome(DAMAGED, OTHER, f"{detail}: {codes}, {launch.err(0)[-1500:]}")
    violations = differences(bench.reference(shape), workdir)
    is_reported = f"Checkpoint {STEPS} is damaged and skipped" in out
    is_moved = (workdir / "damaged_checkpoints" / str(STEPS)).is_dir()
    if f"Resumed at step {STEPS} " in out:
        detail += " (no array is affected: it is restored completely)"  # else `differences` reports it
    elif f"Resumed at step {STEPS - 10} " not in out or (name != INCOMPLETE and not (is_reported and is_moved)):
        violations.append(f"it was not moved aside and reported: {out[:1500]}")
    return bench.outcome(DAMAGED, OTHER if violations else SAME, ": ".join([detail, *violations]))


def corruptions(bench: Bench) -> Iterator[Outcome]:
    """Corruption of the newest checkpoint, or of all of them, between two launches."""
    for number, name in enumerate(list(CORRUPTIONS)[:4] if bench.small else CORRUPTIONS):
        yield _corrupt_newest(bench, name, bench.pair if number % 4 == 3 and not bench.small else bench.alone)
    if not bench.small:
        yield _corrupt_all(bench)


def _corrupt_all(bench: Bench) -> Outcome:
    workdir = shutil.copytree(bench.reference(bench.alone), bench.folder())
    steps = saved_steps(workdir)
    for step in steps:
        CORRUPTIONS["every file empty"](workdir / "checkpoints" / str(step), bench.rng)
    launch = bench.launch(workdir, bench.alone)
    codes = launch.codes()
    moved = sorted(int(path.name) for path in (workdir / "damaged_checkpoints").glob("*"))
    is_clear_stop = codes == [2] * len(codes) and "None of the checkpoints" in launch.sentence(0) and moved == steps
    detail = f"{codes}, {launch.err(0)[-1500:]}"
    return bench.outcome("all checkpoints damaged", STOPPED if is_clear_stop else OTHER, detail)


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
    detail = f"{shape[0]} processes, {kibibytes} KiB left"
    if not launch.reach(bench.rng.randint(21, 60)):
        return bench.outcome(FULL, OTHER, f"{detail}: training did not start, {launch.err(0)[-1500:]}")
    _fill(disk, kibibytes * 1024)
    launch.codes()
    violations = [unexpected_exit(launch, i) for i in range(shape[0])]
    steps = saved_steps(workdir)
    (disk / "filler").unlink()
    detail += f", stopped with checkpoints {steps}: {launch.sentence(0)}"
    violations += [bench.final_differences(workdir, shape)]
    return bench.outcome(FULL, OTHER if any(violations) else SAME, "; ".join(filter(None, [detail, *violations])))


def full_disks(bench: Bench) -> Iterator[Outcome]:
    """A full disk of the workdir."""
    trials = [(bench.alone, 60), (bench.pair, 0)]
    for number, (shape, kibibytes) in enumerate(trials[:1] if bench.small else trials):
        bench.reference(shape)
        disk = bench.root / f"disk{number}"
        with _small_disk(disk) as reason:
            if reason:
                yield bench.outcome(FULL, SKIPPED, reason)
                return
            yield _on_full_disk(bench, disk, shape, kibibytes)
