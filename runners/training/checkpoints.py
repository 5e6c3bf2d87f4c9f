"""Checkpoints of a run: the last k and the best, written while training goes on."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from layers.errors import UsageError, VortaroError, first_line
from runners.processes.coordination import lost_contact, peers
from runners.training.checksums import checksums
from runners.training.s3_checkpoints import use_s3
from tasks.storage.files import Place, absolute, make_folder, move_folder, place
from tasks.train_step import TrainState

FOLDER = "checkpoints"
DAMAGED = "damaged_checkpoints"
CHECKSUMS = "checksums"


class _Manager(ocp.CheckpointManager):
    """Orbax's, which does not ask about preemption: its numbers of steps would mix with the loop's own questions."""

    def reached_preemption(self, step: int) -> bool:
        return False


class Checkpoints:
    """The checkpoints in a run folder. Each is written to a temporary name and renamed when whole."""

    def __init__(self, workdir: Place, keep_last: int = 1, keep_best: int = 0, *, read_only: bool = False):
        self._workdir, self._read_only = workdir, read_only
        policies: list[managers.PreservationPolicy] = [managers.LatestN(n=keep_last)]
        if keep_best:
            # BestN keeps the end of the ordered list: descending, so that the lowest loss is last.
            best = managers.BestN(
                get_metric_fn=_loss, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
            )
            policies.append(best)
        options = ocp.CheckpointManagerOptions(
            best_fn=_loss,
            best_mode="min",
            preservation_policy=managers.AnyPreservationPolicy(policies),
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
            create=not read_only,
        )
        if str(workdir).startswith("s3://"):
            use_s3()
        folder = absolute(workdir / FOLDER)
        self._require_metrics(folder)
        self._manager = _Manager(folder, options=options, item_names=("state", "extra"))

    def _require_metrics(self, folder: Place) -> None:
        """Puts checkpoints aside whose metrics cannot be read: the manager reads those of all, and would fail.

        Raises:
          UsageError: there is one, and this may not move it.
        """

        there = folder.iterdir() if peers().primary and folder.is_dir() else ()
        steps = sorted(int(path.name) for path in there if path.name.isdigit())
        bad = [step for step in steps if not _is_json(folder / str(step) / "metrics" / "metrics")]
        self._without_metrics: list[int] = peers().first_says(bad)
        for step in self._without_metrics:
            if self._read_only:
                raise UsageError(f"Checkpoint {step} in '{self._workdir}' is damaged: its metrics cannot be read.")
            print(f"Checkpoint {step} is damaged and passed over: its metrics cannot be read", flush=True)
            self._move_aside(step)

    def save(self, step: int, state: TrainState, extra: dict[str, Any], loss: float | None) -> None:
        """Starts saving; `extra` is JSON, `loss` the validation loss at this step where it is known.

        Raises:
          VortaroError: this checkpoint or the one before cannot be written, for want of space say.
        """
        extra = extra | {CHECKSUMS: _checksums(state)}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), extra=ocp.args.JsonSave(extra))
        with self._writing():
            self._manager.save(step, args=items, metrics=None if loss is None else {"loss": loss}, force=True)

    def check(self) -> None:
        """Raises a VortaroError where what was being saved cannot be written."""
        with self._writing():
            self._manager.check_for_errors()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def restore(self, abstract: TrainState, which: str = "last") -> tuple[TrainState, dict[str, Any]] | None:
        """The newest checkpoint that can be read, or the one asked for; None where there is none.

        Those that one of the processes cannot read are named, moved to `damaged_checkpoints` and passed over by all.

        Args:
          abstract: shapes, dtypes and shardings to restore to.
          which: "last", "best" or a step.
        """
        if which != "last":
            step = self.find(which)
            restored, wrong = self._restore(step, abstract)
            if restored is None:
                raise UsageError(f"Checkpoint {step} cannot be read: {wrong}")
            return restored
        steps: list[int] = peers().first_says(self.steps())
        for step in reversed(steps):
            restored, wrong = self._restore(step, abstract)
            if restored is not None:
                return restored
            print(f"Checkpoint {step} is damaged and passed over: {wrong}", flush=True)
            self._put_aside(step)
        if steps := sorted([*steps, *self._without_metrics]):
            raise UsageError(
                f"None of the checkpoints {steps} in '{self._workdir}' can be read: choose another workdir."
            )
        return None

    def require(self, abstract: TrainState, which: str) -> tuple[TrainState, dict[str, Any]]:
        """`restore`, where there must be a checkpoint; raises a UsageError where there is none."""
        restored = self.restore(abstract, which)
        if restored is None:
            raise UsageError(f"'{self._workdir}' holds no checkpoint yet: train first.")
        return restored

    def _restore(self, step: int, abstract: TrainState) -> tuple[tuple[TrainState, dict[str, Any]] | None, str]:
        """A checkpoint; or None and what is wrong with it, in whichever process."""
        restored, error = None, None
        try:
            restored = self._load(step, abstract)
        except (VortaroError, MemoryError, jax.errors.JaxRuntimeError):
            raise  # nothing is wrong with the files
        except Exception as unreadable:  # orbax raises what its storage layers raise: any of it means unreadable
            error = unreadable
        if wrong := peers().all_succeed(None if error is None else first_line(error)):
            return None, wrong
        assert restored is not None
        state, extra = restored
        if (saved := extra.pop(CHECKSUMS, None)) is not None:
            changed = [path for path, found in _checksums(state).items() if saved.get(path) != found]
            if changed:
                return None, f"{changed[0]} does not have the bits that were saved"
        return restored, ""

    def _load(self, step: int, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """What this process reads of a checkpoint, without waiting for others: one of them may fail to."""
        self._compare(step, abstract)
        index = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"load{index}"
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
        state = reader.restore(self._state(step), args=ocp.args.StandardRestore(abstract))
        extra = json.loads((self._state(step).parent / "extra" / "metadata").read_text())
        return state, extra

    def restore_part(self, step: int, abstract: Any) -> Any:
        """Some of a checkpoint's arrays: those that `abstract` has, placed as it says."""
        arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
        part = ocp.args.PyTreeRestore(abstract, restore_args=arguments, partial_restore=True)
        try:
            return ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(self._state(step), args=part)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"Checkpoint {step} in '{self._workdir}' cannot be read: {first_line(error)}.") from error

    def stored_shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a checkpoint's arrays by path.

        Raises:
          ValueError, OSError: it cannot be read.
        """
        stored = shapes_by_path(ocp.StandardCheckpointer().metadata(self._state(step)).item_metadata)
        if not stored:
            raise ValueError("it does not say what arrays it holds")
        return stored

    def _state(self, step: int) -> Place:
        return absolute(self._workdir / FOLDER / str(step) / "state")

    def _compare(self, step: int, abstract: TrainState) -> None:
        """Raises a UsageError where the checkpoint is whole, but of other arrays than today's experiment has."""
        stored, wanted = self.stored_shapes(step), shapes_by_path(abstract)
        for path in sorted(stored.keys() | wanted.keys()):
            if stored.get(path) != wanted.get(path):
                have, want = (str(side.get(path, "missing")) for side in (stored, wanted))
                raise UsageError(
                    f"Checkpoint {step} in '{self._workdir}' does not fit the experiment: {path} is {have} there and "
                    f"{want} here. Start in another --workdir."
                )

    def find(self, which: str) -> int:
        """The step of a checkpoint called "last", "best" or by its step; raises a UsageError where there is none."""
        steps = self.steps()
        named = {"last": self._manager.latest_step, "best": self._manager.best_step}
        found = named[which]() if which in named else int(which) if which.isdigit() else None
        if not steps:
            raise UsageError(f"'{self._workdir}' holds no checkpoint yet: train first.")
        if found not in steps:
            raise UsageError(
                f"There is no checkpoint '{which}': choose last, best or one of {', '.join(map(str, steps))}."
            )
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

        peers().in_turn(move)

    def close(self) -> None:
        """Waits until everything is written.

        Raises:
          VortaroError: writing failed, for want of space say.
        """
        with self._writing():
            self._manager.wait_until_finished()
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Makes a sentence of whatever orbax raises where it, or its threads, cannot write."""
        try:
            yield
        except jax.errors.JaxRuntimeError:
            raise  # an update failed, not a file
        except Exception as error:  # what its storage layers raise, as above
            if lost_contact(error):
                raise
            raise VortaroError(
                f"A checkpoint cannot be written to '{self._workdir}': {_system_error(error)}. Those before it stay; "
                f"the same command goes on from the last of them."
            ) from error


def require_checkpoints(workdir: str) -> None:
    """Raises a UsageError unless the run folder has some."""
    folder = place(workdir)
    if not (folder / FOLDER).is_dir():
        if not folder.is_dir():
            raise UsageError(f"There is no folder '{workdir}': train first (--mode=train --workdir={workdir}).")
        raise UsageError(f"'{workdir}' holds no checkpoints: train first (--mode=train --workdir={workdir}).")


def shapes_by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a tree's arrays by path, the same for attributes, keys and numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(getattr(tree, "tree", tree))
    return {path_name(path): tuple(leaf.shape) for path, leaf in leaves}


def path_name(path: Sequence[Any]) -> str:
    """Where a leaf stands in a tree: `variables/params/head/unembedding_mv`."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _checksums(state: TrainState) -> dict[str, int]:
    """The checksum of each array by its path."""
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return dict(zip(paths, checksums(state), strict=True))


def _is_json(path: Place) -> bool:
    """Whether a file holds JSON, if it is there at all."""
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _system_error(error: Exception) -> str:
    """What the system said: storage layers quote its error number in a long sentence of their own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    number = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(number[1])) if number else first_line(error)


def _loss(metrics: dict[str, float]) -> float:
    return metrics["loss"]
