"""Updates that are computed twice and compared bit for bit, to detect devices that compute wrong numbers silently."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax

from layers.errors import VortaroError
from runners.session import Session
from runners.training.checkpoint_parts.checksums import checksums_by_device
from runners.training.checkpoints import path_name
from tasks.batch import Batch
from tasks.train_step import TrainState

SHOWN = 3  # arrays and processes in a message
VARIABLES = "variables/"  # path of the model's variables in a train state; the rest are names of the weight table


def updated(
    session: Session,
    update: Callable[..., TrainState],
    state: TrainState,
    batch: Batch,
    seed: jax.Array,
    step: int,
    before_end: Callable[[], None],
) -> TrainState:
    """Returns the state after update `step`; called by all processes.

    If the program replays it, it is computed twice: with a copy of the state in memory during the first computation,
    and an exchange of messages between the processes after the second.

    Args:
      session: the phase of the update.
      update: the compiled update, which donates the state.
      state: the state before it.
      batch: its batch.
      seed: the key from which its random numbers are derived.
      step: its number.
      before_end: called before the error.
    Raises:
      VortaroError: a device computed other bits the second time; the message names its process and the arrays.
    """
    if not session.train.replays(step):
        return session.settle(update(state, batch, seed))
    copy = session.settle(session.functions.copies_of(state))
    first = checksums_by_device(session.settle(update(copy, batch, seed)), session.mesh)
    state = session.settle(update(state, batch, seed))
    second = checksums_by_device(state, session.mesh)
    paths = [path_name(path).removeprefix(VARIABLES) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    different = {
        device: [path for path, a, b in zip(paths, first[device], second[device], strict=True) if a != b]
        for device in first
    }
    answer = {device: found for device, found in different.items() if found}
    answers = session.processes.reduce(
        json.dumps({"name": session.processes.name, "different": answer}), lambda answers: f"[{','.join(answers)}]"
    )
    if message := difference(step, json.loads(answers)):
        before_end()
        raise VortaroError(message)
    return state


def difference(step: int, answers: Sequence[dict[str, Any]]) -> str:
    """Returns a message about processes whose devices have other bits; an empty string if there are none.

    Args:
      step: number of the update.
      answers: of each process its "name", and in "different" the paths of such arrays by device.
    """
    odd = [answer for answer in answers if answer["different"]]
    if not odd:
        return ""
    paths = list(dict.fromkeys(path for found in odd[0]["different"].values() for path in found))
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    others = f" (and {len(odd) - 1} of {len(answers)} processes)" if len(odd) > 1 else ""
    name = odd[0]["name"]
    return (
        f"{name[0].upper()}{name[1:]} computed other bits when update {step} was computed twice{others}: "
        f"{', '.join(paths[:SHOWN])}{more} on {', '.join(odd[0]['different'])}. A device or its memory is faulty, or a "
        f"program is not deterministic. The run stops without saving it. Remove the machine and run the same command "
        f"again to resume from the last checkpoint."
    )
