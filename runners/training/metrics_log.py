"""Logging of scalars: metrics.jsonl, TensorBoard (through clu) and, on request, Weights & Biases."""

import importlib
import importlib.util
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from registry.runs.folders import METRICS, TIMES
from registry.runs.metrics import EVALS, PROCESSES, VALIDATION, content_of, in_order_of_file
from tasks.quiet_imports import quiet_native_code, tensorflow
from tasks.storage.files import Place, is_remote, write_whole
from tasks.storage.jsonl import LineFile, read_lines
from tasks.storage.staged_folder import StagedFolder


class MetricsLog:
    """Writes scalars as one JSON object per line, to TensorBoard in a separate thread, and to W&B."""

    def __init__(
        self,
        workdir: Place,
        *,
        resume_at: int,
        began: float,
        tensorboard: bool,
        wandb: str | None,
        config: Mapping[str, Any],
    ):
        """Resumes after step `resume_at`: lines of later steps, written before a crash, are dropped.

        `began` is the time at which this process started, in seconds since 1970.
        """
        self._updates = 0.0  # seconds of updates since this start
        self._step, self._times = resume_at, LineFile(workdir / TIMES, read_lines(workdir / TIMES))
        self._times.write({"time": began, "step": resume_at, "starts": True})
        self._file = LineFile(workdir / METRICS, (line for line in read(workdir) if line["step"] <= resume_at))
        self._events = StagedFolder(workdir / "tensorboard")
        self._worker = ThreadPoolExecutor(1)
        self._clu: dict[str, Any] = {}  # writers of TensorBoard events by split
        self._new_writer: Callable[[str], Any] | None = None
        self._opened: Future[None] | None = None
        self._wandb = None
        if tensorboard and _installed("clu") and _installed("tensorflow"):
            # clu writes events with TensorFlow, whose import takes seconds: training does not wait for it.
            self._opened = self._worker.submit(self._open_tensorboard)
        if wandb is not None:
            self._wandb = _open_wandb(workdir, wandb, config)

    def write(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        """Adds the scalars of a split at a step."""
        self._file.write({"step": step, "split": split, **scalars})
        self._worker.submit(self._write_tensorboard, step, split, dict(scalars))
        if self._wandb is not None:
            self._wandb.log({f"{split}/{name}": value for name, value in scalars.items()}, step=step)

    def write_event(self, step: int, name: str, content: Mapping[str, Any]) -> None:
        """Adds an event of processes at a step to metrics.jsonl."""
        self._file.write({"step": step, "split": PROCESSES, name: content})

    def spent(self, step: int, seconds: float) -> None:
        """Records the time: `step` is the last update, `seconds` the time of all updates since this start."""
        if step > self._step:
            self._times.write({"time": time.time(), "step": step, "updates": seconds - self._updates})
            self._step, self._updates = step, seconds

    def flush(self) -> None:
        """Writes all buffered lines, so that a checkpoint saved afterwards resumes with them."""
        self._file.flush()
        self._times.flush()

    def close(self) -> None:
        """Waits until everything is written, and closes all files."""
        self._times.write({"time": time.time(), "step": self._step})
        self._times.close()
        self._worker.shutdown()
        if self._opened is not None and (error := self._opened.exception()) is not None:
            print(f"TensorBoard events could not be written ({error}).", flush=True)
        for writer in self._clu.values():
            writer.close()
        self._file.close()
        self._events.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _open_tensorboard(self) -> None:
        with quiet_native_code():
            tensorflow()
            from clu import metric_writers

        self._new_writer = lambda split: metric_writers.SummaryWriter(str(self._events.folder / split))
        self._clu = {split: self._new_writer(split) for split in ("train", "validation", "test")}

    def _write_tensorboard(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        if self._new_writer is not None:
            writer = self._clu.get(split) or self._clu.setdefault(split, self._new_writer(split))
            writer.write_scalars(step, scalars)
            writer.flush()
            self._events.copy(at_once=False)


class NullMetricsLog:
    """The metrics log of processes that write no metrics."""

    def write(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        """Does nothing."""

    def write_event(self, step: int, name: str, content: Mapping[str, Any]) -> None:
        """Does nothing."""

    def spent(self, step: int, seconds: float) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def read(workdir: Place) -> Iterator[dict[str, Any]]:
    """Yields the lines of metrics.jsonl; truncated and damaged ones are omitted."""
    return iter(in_order_of_file(content_of(workdir)))


def evaluations(workdir: Place, step: int) -> list[str]:
    """Returns which of VALIDATION and EVALS metrics.jsonl has at a step."""
    splits = {line["split"] for line in read(workdir) if line["step"] == step}
    return [split for split in (VALIDATION, EVALS) if split in splits]


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _open_wandb(workdir: Place, project: str, config: Mapping[str, Any]) -> Any:
    wandb = importlib.import_module("wandb")
    # The folder keeps the W&B id, so that a resumed run continues the same curves.
    file = workdir / "wandb_id.txt"
    if not file.exists():
        write_whole(file, secrets.token_hex(4))
    settings: dict[str, Any] = {"project": project, "id": file.read_text(), "config": dict(config), "resume": "allow"}
    return wandb.init(dir=None if is_remote(workdir) else str(workdir), **settings)
