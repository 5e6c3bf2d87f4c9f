"""Checkpoints of a run: the last k and the best, written asynchronously during training."""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from layers.errors import UsageError, VortaroError, first_line
from registry.runs.folders import CHECKPOINTS as FOLDER
from runners.processes.coordination import ProcessGroup, lost_contact
from runners.session import Session
from runners.training.checkpoint_parts.checksums import checksums
from runners.training.checkpoint_parts.files import is_listed, saved_state
from runners.training.checkpoint_parts.retention import loss_of, policy
from runners.training.checkpoint_parts.s3 import use_s3
from runners.training.checkpoint_parts.save_limits import Manager, use_monotonic_clock
from runners.training.checkpoint_parts.snapshots import Snapshots
from runners.training.input_state import SavedState
from tasks.programs import TrainProgram
from tasks.storage.files import Place, absolute, make_folder, move_folder, place
from tasks.storage.json_values import require_type
from tasks.train_step import TrainState

DAMAGED = "damaged_checkpoints"
CHECKSUMS = "checksums"
REPORTS = "sums/reports/"  # path of the sums of metrics that layers report


class Checkpoints:
    """The checkpoints in a run folder. Each is written under a temporary name and renamed when complete.

    Args:
      workdir: the run folder.
      program: the training that saves them, which selects those to keep; None keeps the last one only.
      read_only: whether nothing is saved or moved.
      processes: the processes of the run; None if this one runs alone.
    """

    def __init__(
        self,
        workdir: Place,
        program: TrainProgram | None = None,
        *,
        read_only: bool = False,
        processes: ProcessGroup | None = None,
    ):
        self._workdir, self._read_only, self._processes = workdir, read_only, processes or ProcessGroup()
        self._program, self._saved, self._snapshots = program, time.monotonic(), Snapshots()
        options = ocp.CheckpointManagerOptions(
            best_fn=loss_of,
            best_mode="min",
            preservation_policy=policy(program),
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
            create=not read_only,
        )
        use_monotonic_clock()
        if str(workdir).startswith("s3://"):
            use_s3()
        folder = absolute(workdir / FOLDER)
        self._require_listed(folder)
        # Uncompressed: zstd takes 6% to 8% off the bytes of weights and slots, for six times the CPU time of a save.
        handlers: dict[str, Any] = {
            "state": ocp.PyTreeCheckpointHandler(use_compression=False),
            "extra": ocp.JsonCheckpointHandler(),
        }
        self._manager = Manager(folder, options=options, item_handlers=handlers)

    def _require_listed(self, folder: Place) -> None:
        """Moves checkpoints with unreadable metrics or times aside, because the manager reads all and would fail.

        Raises:
          UsageError: there is one, and the folder is read-only.
        """
        there = folder.iterdir() if self._processes.primary and folder.is_dir() else ()
        steps = sorted(int(path.name) for path in there if path.name.isdigit())
        bad = [step for step in steps if not is_listed(folder / str(step))]
        self._unlisted: list[int] = self._processes.broadcast(bad)
        for step in self._unlisted:
            if self._read_only:
                raise UsageError(
                    f"Checkpoint {step} in '{self._workdir}' is damaged (its metrics or its time cannot be read). "
                    f"Resume the run to move it aside, or delete it."
                )
            print(f"Checkpoint {step} is damaged and skipped: its metrics or its time cannot be read", flush=True)
            self._move_aside(step)

    def save(
        self,
        step: int,
        state: TrainState,
        extra: dict[str, Any],
        loss: float | None,
        phase: int = 0,
        *,
        continues: bool = False,
    ) -> None:
        """Starts saving; `extra` is JSON, `loss` the validation loss at this step if known, on the data of a phase.

        With `continues`, updates follow that overwrite the state.

        Raises:
          VortaroError: this checkpoint or the one before cannot be written, for example because the disk is full; or
            `extra` is not a SavedState, so that the checkpoint could not be restored.
        """
        try:
            require_type(extra, SavedState, "the input's state")
        except ValueError as error:
            raise VortaroError(f"Step {step} cannot be saved: {error}. Correct state() of the input.") from error
        extra = extra | {CHECKSUMS: _checksums(state)}
        self._saved = time.monotonic()
        metrics = None if loss is None else {"loss": loss, **({"phase": phase} if phase else {})}
        self.wait()
        stored = _stored(state)
        if continues:
            stored = self._snapshots.take(stored)
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(stored), extra=ocp.args.JsonSave(extra))
        with self._writing():
            self._manager.save(step, args=items, metrics=metrics, force=True)

    def is_due(self, step: int) -> bool:
        """Returns whether the program saves a checkpoint after an update; the same in all processes."""
        assert self._program is not None
        minutes = self._program.save_minutes
        if step == self._program.num_steps:  # saved after the last evaluation
            return False
        if minutes is None or not self._program.is_temporary(step) or not self._program.ends_window(step):
            return not self._program.is_temporary(step)
        return self._processes.broadcast(time.monotonic() - self._saved > 60 * minutes)

    def check(self) -> None:
        """Raises a VortaroError if the checkpoint being saved cannot be written."""
        with self._writing():
            self._manager.check_for_errors()

    def steps(self) -> list[int]:
        """Returns the steps with a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def restore(self, abstract: TrainState, which: str = "last") -> tuple[TrainState, dict[str, Any]] | None:
        """Returns the newest readable checkpoint, or the one that `which` names; None if the folder has none.

        With "last", checkpoints that any process cannot read are reported, moved to `damaged_checkpoints` and skipped.

        Args:
          abstract: shapes, dtypes and shardings to restore to.
          which: "last", "best" or a step.
        Raises:
          UsageError: the named checkpoint, or every checkpoint, cannot be read.
        """
        if which != "last":
            step = self.find(which)
            restored, wrong = self._restore(step, abstract)
            if restored is None:
                raise UsageError(f"Checkpoint {step} cannot be read ({wrong}). Choose another.")
            return restored
        steps: list[int] = self._processes.broadcast(self.steps())
        for step in reversed(steps):
            restored, wrong = self._restore(step, abstract)
            if restored is not None:
                return restored
            print(f"Checkpoint {step} is damaged and skipped: {wrong}", flush=True)
            self._put_aside(step)
        if steps := sorted([*steps, *self._unlisted]):
            raise UsageError(
                f"None of the checkpoints {steps} in '{self._workdir}' can be read. Choose another --workdir."
            )
        return None

    def require(self, abstract: TrainState, which: str) -> tuple[TrainState, dict[str, Any]]:
        """Returns the result of `restore`; raises a UsageError if the folder has no checkpoint."""
        restored = self.restore(abstract, which)
        if restored is None:
            raise UsageError(f"'{self._workdir}' has no checkpoint yet. Train first.")
        return restored

    def _restore(self, step: int, abstract: TrainState) -> tuple[tuple[TrainState, dict[str, Any]] | None, str]:
        """Returns a checkpoint and ""; or None and the first error of any process."""
        restored, error = None, None
        try:
            restored = self._load(step, abstract)
        except (VortaroError, MemoryError, jax.errors.JaxRuntimeError):
            raise  # these errors do not mean damaged files
        except Exception as unreadable:  # orbax passes on exceptions of its storage layers: all mean unreadable
            error = unreadable
        if wrong := self._processes.first_error(None if error is None else first_line(error)):
            return None, wrong
        assert restored is not None
        state, extra = restored
        if (saved := extra.pop(CHECKSUMS, None)) is not None:
            changed = [path for path, found in _checksums(state).items() if saved.get(path) != found]
            if changed:
                return None, f"{changed[0]} does not have the bits that were saved"
        return (_with_reports(state, set(abstract.sums.reports)), extra), ""

    def _load(self, step: int, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Returns this process's part of a checkpoint; does not wait for the others, because one of them may fail."""
        stored = self.stored_shapes(step)
        abstract = _with_reports(abstract, {path.rpartition("/")[2] for path in stored if path.startswith(REPORTS)})
        self._compare(step, stored, abstract)
        index = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"load{index}"
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
        restored = reader.restore(self._state(step), args=ocp.args.StandardRestore(_stored(abstract)))
        state = TrainState(**restored) if isinstance(restored, dict) else restored
        return state, saved_state(self._state(step).parent)

    def restore_part(self, step: int, abstract: Any) -> Any:
        """Returns the arrays of a checkpoint that `abstract` has, with its shardings.

        Raises:
          UsageError: the checkpoint cannot be read.
        """
        arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
        part = ocp.args.PyTreeRestore(abstract, restore_args=arguments, partial_restore=True)
        try:
            return ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(self._state(step), args=part)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"Checkpoint {step} in '{self._workdir}' cannot be read ({first_line(error)}). Choose another."
            ) from error

    def stored_shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a checkpoint's arrays by path.

        Raises:
          ValueError, OSError: the checkpoint cannot be read.
        """
        stored = shapes_by_path(ocp.StandardCheckpointer().metadata(self._state(step)).item_metadata)
        if not stored:
            raise ValueError("its metadata lists no arrays")
        return stored

    def _state(self, step: int) -> Place:
        return absolute(self._workdir / FOLDER / str(step) / "state")

    def _compare(self, step: int, stored: dict[str, tuple[int, ...]], abstract: TrainState) -> None:
        """Raises a UsageError if the checkpoint is complete but its arrays differ from those of the experiment."""
        wanted = shapes_by_path(abstract)
        for path in sorted(stored.keys() | wanted.keys()):
            if stored.get(path) != wanted.get(path):
                have, want = (str(side.get(path, "missing")) for side in (stored, wanted))
                raise UsageError(
                    f"Checkpoint {step} in '{self._workdir}' does not fit the experiment ({path} is {have} there and "
                    f"{want} here). Start in another --workdir."
                )

    def find(self, which: str) -> int:
        """Returns the step of the checkpoint "last", "best" or a step; raises a UsageError if it does not exist."""
        steps = self.steps()
        named = {"last": self._manager.latest_step, "best": self._manager.best_step}
        found = named[which]() if which in named else int(which) if which.isdigit() else None
        if not steps:
            raise UsageError(f"'{self._workdir}' has no checkpoint yet. Train first.")
        if found not in steps:
            raise UsageError(f"Unknown checkpoint '{which}'. Choose last, best or one of {', '.join(map(str, steps))}.")
        return found

    def _put_aside(self, step: int) -> None:
        if self._read_only:
            return
        self._move_aside(step)
        self._manager.reload()

    def _move_aside(self, step: int) -> None:
        aside = self._workdir / DAMAGED
        target = aside / str(step)

        def move() -> None:
            make_folder(aside)
            move_folder(self._workdir / FOLDER / str(step), target)

        self._processes.run_in_first(move)

    def wait(self) -> None:
        """Waits until everything is written.

        Raises:
          VortaroError: writing failed, for example because the disk is full.
        """
        with self._writing():
            self._manager.wait()

    def close(self) -> None:
        """Waits as `wait` does, and frees the memory and threads of saves."""
        self.wait()
        self._snapshots = Snapshots()
        with self._writing():
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Converts errors of orbax or its threads while writing to a VortaroError."""
        try:
            yield
        except jax.errors.JaxRuntimeError:
            raise  # an update failed, not a file
        except Exception as error:  # any exception of the storage layers, as above
            if lost_contact(error):
                raise
            raise VortaroError(
                f"A checkpoint cannot be written to '{self._workdir}' ({_system_error(error)}). Earlier checkpoints "
                f"are intact. Run the same command again to resume from the last of them."
            ) from error


def session_of(session: Session, workdir: Place, which: str) -> Session:
    """Returns the session of the phase that a checkpoint ends in: "last", "best" or a step.

    Raises:
      UsageError: the run has phases, and no such checkpoint.
    """
    if len(session.phases) == 1:
        return session
    return session.of_update(Checkpoints(workdir, read_only=True, processes=session.processes).find(which))


def run_and_checkpoint(source: str) -> tuple[str, str]:
    """Returns the run folder and the checkpoint of RUN@STEP: a step, last or best; of RUN alone it is the last one."""
    folder, at, which = source.rpartition("@")
    return (folder, which) if at else (source, "last")


def require_checkpoints(workdir: str) -> None:
    """Raises a UsageError unless the run folder has a folder of checkpoints."""
    folder = place(workdir)
    if not (folder / FOLDER).is_dir():
        if not folder.is_dir():
            raise UsageError(f"The workdir '{workdir}' does not exist. Train first (--mode=train --workdir={workdir}).")
        raise UsageError(f"'{workdir}' has no checkpoints. Train first (--mode=train --workdir={workdir}).")


def _stored(state: TrainState) -> Any:
    """Returns the tree that a checkpoint has: without the values of spikes, if there are none, as earlier versions."""
    if state.recent is not None:
        return state
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name != "recent"}


def _with_reports(state: TrainState, names: set[str]) -> TrainState:
    """Returns the state with the sums of these metrics of layers, 0 for those that another version did not report."""
    like, reports = state.sums.objective, state.sums.reports
    new = lambda: like if isinstance(like, jax.ShapeDtypeStruct) else jnp.zeros_like(like)
    found = {name: reports[name] if name in reports else new() for name in sorted(names)}
    return state.replace(sums=state.sums.replace(reports=found))


def shapes_by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a tree's arrays by path; attributes, keys and indices give the same paths."""
    leaves = jax.tree_util.tree_leaves_with_path(getattr(tree, "tree", tree))
    return {path_name(path): tuple(leaf.shape) for path, leaf in leaves}


def path_name(path: Sequence[Any]) -> str:
    """Returns the path of a leaf in a tree as text: `variables/params/head/unembedding_mv`."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _checksums(state: TrainState) -> dict[str, int]:
    """Returns the checksum of each array by path."""
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return dict(zip(paths, checksums(state), strict=True))


def _system_error(error: Exception) -> str:
    """Returns the operating system's error text, also for storage layers that wrap its error number in a long one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    number = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(number[1])) if number else first_line(error)
