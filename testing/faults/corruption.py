"""Corruption of checkpoints on disk."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

Corruption = Callable[[Path, random.Random], object]


def _array_files(folder: Path) -> list[Path]:
    """Returns the files of arrays, largest first."""
    files = [path for path in (folder / "state").rglob("d/*") if path.is_file()]
    return sorted(files, key=lambda path: -path.stat().st_size)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _zero_block(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    block = min(4096, len(content) // 2)
    start = rng.randrange(len(content) - block)
    content[start : start + block] = bytes(block)
    path.write_bytes(content)


def _interrupt_write(folder: Path, rng: random.Random) -> None:
    """Simulates a crash during the write: half of the files, under a temporary name."""
    incomplete = folder.with_name(f"{folder.name}.orbax-checkpoint-tmp")
    folder.rename(incomplete)
    for path in [path for path in sorted(incomplete.rglob("*")) if path.is_file()][::2]:
        path.unlink()


def _empty_all(folder: Path, rng: random.Random) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


INCOMPLETE = "a incomplete directory under a temporary name"  # never complete, so skipped without a message
CORRUPTIONS: dict[str, Corruption] = {
    "the largest data file cut in half": lambda folder, rng: _truncate(_array_files(folder)[0]),
    "one bit flipped in the largest data file": lambda folder, rng: _flip_bit(_array_files(folder)[0], rng),
    "an empty directory": lambda folder, rng: [shutil.rmtree(folder), folder.mkdir()],
    "the state missing": lambda folder, rng: shutil.rmtree(folder / "state"),
    "_METADATA of the arrays cut in half": lambda folder, rng: _truncate(folder / "state" / "_METADATA"),
    "`extra` missing": lambda folder, rng: shutil.rmtree(folder / "extra"),
    INCOMPLETE: _interrupt_write,
    "a data file missing": lambda folder, rng: _array_files(folder)[0].unlink(),
    "the OCDBT manifest zeroed": lambda folder, rng: (folder / "state" / "manifest.ocdbt").write_bytes(bytes(200)),
    "4 KiB of zeros in the largest data file": lambda folder, rng: _zero_block(_array_files(folder)[0], rng),
    "`extra` with invalid JSON": lambda folder, rng: (folder / "extra" / "metadata").write_text("{"),
    "every file empty": _empty_all,
    "its metrics cut in half": lambda folder, rng: _truncate(folder / "metrics" / "metrics"),
    "one bit flipped in the second data file": lambda folder, rng: _flip_bit(_array_files(folder)[1], rng),
    "a process's OCDBT manifest missing": lambda folder, rng: next(
        (folder / "state").glob("ocdbt.process_*/manifest.ocdbt")
    ).unlink(),
}
