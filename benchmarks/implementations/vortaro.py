"""gpt2.Gpt2Small or a Llama of the registry, in the sizes of the comparison.

Options are overrides (`REMAT=dots`); "uncached" decodes with a forward pass over the complete sequence per token.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from benchmarks.implementations.work import (
    BETAS,
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    NOT_A_TARGET,
    WEIGHT_DECAY,
    Decoder,
    Gpt2Size,
    Trainer,
)
from registry.resolve import resolve
from runners.conversion.fitting import fitted
from runners.conversion.foreign_files import read_weights
from runners.conversion.loading import loaded
from runners.conversion.name_maps import name_map
from runners.conversion.renaming import Layout, name_of, slice_of
from runners.conversion.tensors import write_safetensors
from runners.session import Session
from tasks.batch import Batch
from tasks.decoding.generation import generate
from tasks.decoding.sampler import Sampler

SETTINGS = [
    "DATA=synthetic",
    "DTYPE=float32",
    "DROPOUT=0",
    "SCHEDULE=constant",
    "WARMUP_STEPS=0",
    f"LEARNING_RATE={LEARNING_RATE}",
    f"BETA1={BETAS[0]}",
    f"BETA2={BETAS[1]}",
    f"ADAM_EPSILON={EPSILON}",
    f"WEIGHT_DECAY={WEIGHT_DECAY}",
    "CLIP_VALUE=none",
    f"CLIP_NORM={CLIP_NORM}",
    "LOSS_CHUNK=none",
    "LOG_EVERY=1",
]


def session_of(size: Gpt2Size, options: set[str]) -> Session:
    """Returns a session of the experiment on one device."""
    return Session(resolve(size.experiment, [*SETTINGS, *size.overrides, *sorted(options)]), jax.devices()[:1])


def write_weights(size: Gpt2Size, file: str) -> None:
    """Writes the experiment's initial weights in the format of its size, for all implementations."""
    session = session_of(size, set())
    with session.placed():
        flat = traverse_util.flatten_dict(session.functions.init().variables, sep="/")
    write_safetensors(Path(file), layout_of(size, session).to_theirs(slice_of(flat)))


def layout_of(size: Gpt2Size, session: Session) -> Layout:
    """Returns the slots of the weights in files of the size's format."""
    table = session.task.weight_table()
    return Layout(name_map(size.format, [name_of(row) for row in table]), table)


def load(size: Gpt2Size, session: Session, weights: str) -> Any:
    """Loads the variables from a file in the size's format."""
    layout = layout_of(size, session)
    tensors = fitted(layout, read_weights(weights), weights, type(session.experiment).knobs())
    return loaded(session, layout, tensors)


def batch_of(size: Gpt2Size) -> Batch:
    """Returns the batch of the comparison."""
    targets = size.targets()
    weights = (targets != NOT_A_TARGET).astype(np.float32)
    return Batch(inputs=size.rows_of_tokens(), targets=np.maximum(targets, 0), weights=weights)


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    session = session_of(size, options)
    with session.placed():
        batch = session.host_batches.put(batch_of(size))
        update = session.functions.compile_step(batch)
        state = session.functions.start_from(load(size, session, weights))

    def run(updates: int) -> float:
        nonlocal state
        for _ in range(updates):
            state = update(state, batch, session.seed)
        sums = jax.block_until_ready(state).sums
        return float(sums.loss / sums.weight)

    return run


def decoder(size: Gpt2Size, weights: str, rows: int, prompt: int, new: int, options: set[str]) -> Decoder:
    session = session_of(size, options - {"uncached"})
    tokens = size.rows_of_tokens(rows, prompt)
    with session.placed():
        variables = load(size, session, weights)
    if "uncached" in options:
        return lambda: whole_passes(session, variables, tokens, new)
    real, greedy = np.ones_like(tokens), Sampler(temperature=0.0)

    def run() -> np.ndarray:
        with session.placed():
            drawn, _ = generate(
                session.task, variables, tokens, real, jax.random.key(0), new_tokens=new, sampler=greedy
            )
            return np.asarray(drawn)

    return run


def whole_passes(session: Session, variables: Any, tokens: np.ndarray, new: int) -> np.ndarray:
    """Decodes greedily without a cache: each token costs a forward pass over the complete buffer."""
    buffer = jnp.pad(jnp.asarray(tokens), ((0, 0), (0, new)))
    for end in range(tokens.shape[1], tokens.shape[1] + new):
        buffer = _extended(session, variables, buffer, end)
    return np.asarray(buffer)[:, tokens.shape[1] :]


@functools.partial(jax.jit, static_argnums=0)
def _extended(session: Session, variables: Any, buffer: jax.Array, end: jax.Array) -> jax.Array:
    model: Any = session.task
    features, _ = model.model.apply(variables, buffer)
    last = jax.lax.dynamic_slice_in_dim(features, end - 1, 1, axis=1)
    token = model.model.apply(variables, last, method="logits")[:, 0].argmax(-1)[:, None].astype(jnp.int32)
    return jax.lax.dynamic_update_slice_in_dim(buffer, token, end, axis=1)
