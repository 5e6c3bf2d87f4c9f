"""Run folders in notebooks: metrics, logits and samples."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from registry.resolve import resolve_recorded
from runners.sampling.sample import check_room, prompt_ids, until_stop
from runners.session import Session
from runners.training import metrics_log
from runners.training.checkpoints import Checkpoints, session_of
from runners.training.workdir import recorded
from tasks.decoding.generation import generate
from tasks.decoding.prompts import pad_prompts, shared_tokens
from tasks.decoding.sampler import Sampler
from tasks.storage.files import place
from vortaro.tables import Table
from vortaro.view import View


class Run:
    """A run, loaded onto the devices of this process.

    Args:
      folder: the run folder.
      checkpoint: "last", "best" or a step.
    """

    def __init__(self, folder: str, checkpoint: str = "last"):
        self.folder, self.checkpoint = folder, checkpoint
        self.view = View(resolve_recorded(recorded(folder)))

    @functools.cached_property
    def _session(self) -> Session:
        return session_of(Session(self.view.experiment), place(self.folder), self.checkpoint)

    @functools.cached_property
    def _state(self) -> Any:
        with self._session.placed():
            checkpoints = Checkpoints(place(self.folder), read_only=True)
            return checkpoints.require(self._session.abstract.state, self.checkpoint)[0]

    @functools.cached_property
    def _logits(self) -> Any:
        task: Any = self._session.task
        return jax.jit(task.logits)

    @property
    def metrics(self) -> Table:
        """Lines of metrics.jsonl: step, split, and every scalar."""
        return Table(metrics_log.read(place(self.folder)))

    @property
    def step(self) -> int:
        """Number of updates at the checkpoint."""
        return int(self._state.step)

    @functools.cached_property
    def variables(self) -> Any:
        """The model's variables, a tree of arrays on the devices; the average of the weights if the run has one."""
        with self._session.placed():
            return self._session.functions.evaluated(self._state)

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float32 logits (S, V) of the tokens after each prefix of `ids` (S,); (B, S, V) for ids (B, S)."""
        tokens = jnp.asarray(ids, jnp.int32)
        rows = tokens[None] if tokens.ndim == 1 else tokens
        with self._session.placed():
            logits = np.asarray(self._logits(self.variables, rows), np.float32)
        return logits[0] if tokens.ndim == 1 else logits

    def generate(self, prompt: str | Sequence[str], max_new_tokens: int = 256, *, seed: int = 0, **rules: Any) -> Any:
        """Returns the prompt and its continuation; a list for several prompts.

        Args:
          prompt: text, or several texts.
          max_new_tokens: tokens to sample; fewer if a stop token of the vocabulary is sampled.
          seed: seed of the sampler.
          rules: fields of tasks.decoding.sampler.Sampler, like temperature=0.8 or top_k=40.
        Raises:
          UsageError: the model has too few positions, or a rule is invalid.
        """
        texts, task = [prompt] if isinstance(prompt, str) else list(prompt), self._session.task
        prompts = [prompt_ids(task.vocabulary, text, False) for text in texts]
        tokens, real = pad_prompts(prompts)
        check_room(task, tokens.shape[1], max_new_tokens)
        chosen: dict[str, Any] = {
            "sampler": Sampler(**rules),
            "stop_ids": task.vocabulary.stop_ids,
            "new_tokens": max_new_tokens,
            "capacity": tokens.shape[1] + max_new_tokens,
            "shared": shared_tokens(task, prompts),
        }
        with self._session.placed():
            drawn, _ = generate(task, self.variables, tokens, real, jax.random.key(seed), **chosen)
        rows = zip(prompts, np.asarray(drawn).tolist(), strict=True)
        made = [task.vocabulary.decode([*ids, *until_stop(new, task.vocabulary.stop_ids)]) for ids, new in rows]
        return made[0] if isinstance(prompt, str) else made

    def __repr__(self) -> str:
        return f"{self.folder}: {self.view!r}"
