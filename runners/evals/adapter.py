"""The model of a session as a model of lm-evaluation-harness, with the numbers of the harness's Hugging Face model.

Texts are encoded, cut to the model's length and scored as in `lm_eval.models.huggingface.HFLM`. One rule differs:
strings of special tokens in a text ("<|endoftext|>") are plain text, as in training data.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from layers.errors import UsageError
from runners.evals.continuation import Continuer, Generation
from runners.evals.generation_settings import generation_of
from runners.evals.library import harness
from runners.evals.placement import Placement
from runners.evals.scoring import Scorer
from runners.session import Session

NEW_TOKENS = 256  # the harness's own limit for tasks that state none
SUBJECT = "The evaluation of tasks"  # what needs the harness, in errors
Pair = tuple[list[int], list[int]]  # token ids of a context and of its continuation


def session_model(session: Session, batch_tokens: int | None = None, report: Callable[[str], None] = print) -> Any:
    """Returns an `lm_eval.api.model.LM` whose attribute `variables` must be set before requests are run.

    Args:
      session: the session; every process of it runs the same requests.
      batch_tokens: positions of a batch; see `Placement`.
      report: prints a line on each kind of request.
    Raises:
      UsageError: the harness is not installed, or the model does not predict text from left to right.
    """
    require_causal_text(session)
    return _model_class()(session, batch_tokens, report)


def require_causal_text(session: Session) -> None:
    """Raises a UsageError if the session's model does not predict text from left to right."""
    vocabulary = session.task.vocabulary
    if not vocabulary.is_text:
        raise UsageError(
            f"Evaluation tasks need a vocabulary of text (got {vocabulary.describe()}). Set VOCABULARY and DATA."
        )
    objective = getattr(session.experiment, "OBJECTIVE", "causal")
    if objective != "causal":
        raise UsageError(f"Evaluation tasks need a model with OBJECTIVE = causal (got {objective}).")


class _SessionModel:
    """Runs requests of the harness with the model of a session; `_model_class` adds the harness's class of models."""

    cache_hook: Any  # of the harness
    _encode_pair: Callable[[str, str], Pair]  # of the harness

    def __init__(self, session: Session, batch_tokens: int | None, report: Callable[[str], None]):
        super().__init__()
        self._lm_eval = harness(SUBJECT)
        self.variables: Any = None  # the model's variables, set before requests are run
        self._session, self._vocabulary, self.report = session, session.task.vocabulary, report
        placement = Placement(session, batch_tokens)
        self.max_length = placement.longest
        self._scorer, self._continuer = Scorer(session, placement, report), Continuer(session, placement, report)

    @property
    def eot_token_id(self) -> int | None:
        return self._vocabulary.stop_id

    @property
    def prefix_token_id(self) -> int:
        named, start, stop = self._vocabulary.named_start_id, self._vocabulary.start_id, self._vocabulary.stop_id
        found = next((number for number in (named, start, stop) if number is not None), None)
        if found is None:
            raise UsageError(
                f"Texts without a context need a start or end token, which {self._vocabulary.describe()} lacks. "
                f"Use a vocabulary with one."
            )
        return found

    @property
    def max_gen_toks(self) -> int:
        return NEW_TOKENS

    @property
    def tokenizer_name(self) -> str:
        return self._vocabulary.describe()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """Returns the ids of a text, after the vocabulary's start token if it has one."""
        ids, start = self._vocabulary.encode(string), self._vocabulary.start_id
        return ids if start is None or add_special_tokens is False else [start, *ids]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        encoded = [((context, text), *self._pair(context, text)) for context, text in _arguments(requests)]
        answers = self._loglikelihood_tokens(encoded)
        self.report(f"Scored {len(requests):,} continuations in {self._scorer.count()}.")
        return answers

    def _pair(self, context: str, continuation: str) -> Pair:
        """Returns the ids of both texts; white space between them belongs to the continuation."""
        if context.strip() == "":
            ids = self.tok_encode(context + continuation, add_special_tokens=False)
            prefix = self.prefix_token_id
            return (ids[:1], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
        before, ids = self._encode_pair(context, continuation)
        return before or [self.prefix_token_id], ids  # a vocabulary may drop the characters of a context

    def _loglikelihood_tokens(self, requests: Sequence[Any], **unused: Any) -> list[tuple[float, bool]]:
        answers = self._answers([(context, continuation) for _, context, continuation in requests])
        for (texts, *_), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def _answers(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        """Returns the log-probability of each continuation, and whether greedy decoding gives it."""
        for pair in pairs:
            self._require_length(pair)
        require_same_requests(self._session, pairs)
        sequences = [[*context, *continuation][-(self.max_length + 1) :] for context, continuation in pairs]
        scored = [number for number, (_, continuation) in enumerate(pairs) if continuation]
        scores = self._scorer(self.variables, [sequences[number] for number in scored])
        answers = [(0.0, True)] * len(pairs)  # of empty continuations
        for number, score in zip(scored, scores, strict=True):
            kept = slice(-len(pairs[number][1]), None)
            log_p = float(np.sum(score.log_p[kept], dtype=np.float64))
            answers[number] = log_p, bool(np.all(score.is_likeliest[kept]))
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[float]:
        windows = [self._windows(text) for (text,) in _arguments(requests)]
        answers = iter(self._answers([window for of_text in windows for window in of_text]))
        totals = [sum(next(answers)[0] for _ in of_text) for of_text in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        self.report(f"Scored {len(requests):,} texts in {self._scorer.count()}.")
        return totals

    def _windows(self, text: str) -> list[Pair]:
        """Returns windows of the model's length, which together score each token of the text once."""
        sizes = {"max_seq_len": self.max_length, "context_len": 1}
        ids = self.tok_encode(text)
        rolled = self._lm_eval.utils.get_rolling_token_windows(
            token_list=ids, prefix_token=self.prefix_token_id, **sizes
        )
        return [self._lm_eval.utils.make_disjoint_window(window) for window in rolled]

    def check(self, requests: Iterable[Any]) -> list[list[int] | Pair]:
        """Returns the token ids of all requests.

        Raises:
          UsageError: a request has options that the decoding loop lacks, generates too much, or has a continuation
            longer than the model.
        """
        generated, found = [], list[list[int] | Pair]()
        for request in requests:
            if request.request_type == "generate_until":
                generated.append(request)
            elif request.request_type == "loglikelihood":
                pair = self._pair(*request.args)
                self._require_length(pair, f" of the evaluation task '{request.task_name}'")
                found.append(pair)
            else:
                found += self._windows(*request.args)
        return [*found, *self._prompts(generated, self._generations(generated))]

    def _require_length(self, pair: Pair, subject: str = "") -> None:
        """Raises a UsageError if a continuation has more tokens than the model has positions."""
        if len(pair[1]) > self.max_length:
            raise UsageError(
                f"A continuation{subject} must have at most {self.max_length} tokens, the positions that the model "
                f"is made for (got {len(pair[1])}). Remove the document or the task."
            )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        settings = self._generations(requests)
        prompts = self._prompts(requests, settings)
        require_same_requests(self._session, prompts)
        texts = [""] * len(requests)
        for chosen in dict.fromkeys(settings):
            members = [number for number, other in enumerate(settings) if other == chosen]
            found = self._continuer(self.variables, [prompts[number] for number in members], chosen)
            for number, ids in zip(members, found, strict=True):
                texts[number] = self._lm_eval.models.utils.postprocess_generated_text(
                    self._shown(ids), list(chosen.stops), None
                )
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        self.report(f"Continued {len(requests):,} prompts in {self._continuer.count()}.")
        return texts

    def _prompts(self, requests: Sequence[Any], settings: Sequence[Generation]) -> list[list[int]]:
        """Returns the token ids of prompts, without the first ones of those that are too long."""
        return [
            (self.tok_encode(request.args[0]) or [self.prefix_token_id])[-(self.max_length - chosen.new_tokens) :]
            for request, chosen in zip(requests, settings, strict=True)
        ]

    def _generations(self, requests: Sequence[Any]) -> list[Generation]:
        """Returns the settings of requests, each of which leaves room for a prompt."""
        stop_id = self._vocabulary.stop_id
        end = None if stop_id is None else self._vocabulary.decode([stop_id]) or None
        settings = [generation_of(request.args[1], end, NEW_TOKENS) for request in requests]
        for request, chosen in zip(requests, settings, strict=True):
            if chosen.new_tokens >= self.max_length:
                raise UsageError(
                    f"max_gen_toks of the evaluation task '{request.task_name}' must be below {self.max_length}, "
                    f"the positions that the model is made for (got {chosen.new_tokens}). Set it in "
                    f"generation_kwargs of the task file."
                )
        return settings

    def _shown(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without special tokens and rows of the embedding that no token uses."""
        known = (number for number in ids if number < len(self._token_bytes))
        return self._vocabulary.decode([number for number in known if self._token_bytes[number]])

    @functools.cached_property
    def _token_bytes(self) -> np.ndarray:
        return self._vocabulary.token_bytes()


@functools.cache
def _model_class() -> Any:
    class SessionModel(_SessionModel, harness(SUBJECT).api.model.TemplateLM):
        """A model of the harness, which is imported on first use."""

    return SessionModel


def _arguments(requests: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [request.args for request in requests]


def require_same_requests(session: Session, ids: Any) -> None:
    """Raises a UsageError if processes have built other requests; called by all of them.

    Each process reads the tasks' data on its own, and a difference would leave the others waiting for it.
    """
    if session.processes.several:
        digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
        session.processes.all_agree({"requests of the evaluation tasks": digest[:16]})
