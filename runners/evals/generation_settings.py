"""The settings of a generation task (generation_kwargs of a task file) as those of the decoding loop."""

from collections.abc import Mapping
from typing import Any

from layers.errors import UsageError, did_you_mean
from runners.evals.continuation import Generation
from tasks.decoding.sampler import Sampler

# Names of the limit on new tokens, the first one given counts, as in the harness.
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
FILTERS = {"top_k": "top_k", "top_p": "top_p", "typical_p": "typical_p", "eta_cutoff": "eta"}
# Options of other decoders, and the values with which they have no effect; None is any value.
WITHOUT_EFFECT: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1, "use_cache": None}


def generation_of(choices: Mapping[str, Any], end: str | None, new_tokens: int) -> Generation:
    """Returns the settings of a request.

    Decoding is greedy unless `do_sample` or a temperature above 0 is given.

    Args:
      choices: the request's generation_kwargs.
      end: text of the vocabulary's stop token, which ends a continuation too.
      new_tokens: the limit on new tokens if the request states none.
    Raises:
      UsageError: an option is unknown or has an invalid value.
    """
    known = {"until", "do_sample", "temperature", *LIMITS, *FILTERS, *WITHOUT_EFFECT}
    for name, value in choices.items():
        if name not in known:
            raise UsageError(f"Unknown generation_kwargs '{name}'. {did_you_mean(name, known)}")
        if WITHOUT_EFFECT.get(name) is not None and value != WITHOUT_EFFECT[name]:
            raise UsageError(f"generation_kwargs {name} must be {WITHOUT_EFFECT[name]} (got {value}). Remove it.")
    limit = next((choices[name] for name in LIMITS if choices.get(name) is not None), new_tokens)
    return Generation(_sampler(choices), _at_least_one(limit), _stops(choices.get("until"), end))


def _sampler(choices: Mapping[str, Any]) -> Sampler:
    stated, is_random = choices.get("temperature"), choices.get("do_sample")
    temperature = _number("temperature", (1.0 if is_random else 0.0) if stated is None else stated)
    if is_random is False or not temperature:
        return Sampler(temperature=0.0)
    filters = {ours: choices[name] for name, ours in FILTERS.items() if choices.get(name)}  # 0 is off in the harness
    if filters.get("top_k", 1) < 0:  # -1 is off in vLLM
        del filters["top_k"]
    return Sampler(temperature=temperature, **filters)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"generation_kwargs {name} must be a number (got {value!r}).") from error


def _at_least_one(limit: Any) -> int:
    number = _number("max_gen_toks", limit)
    if number < 1:
        raise UsageError(f"generation_kwargs max_gen_toks must be at least 1 (got {limit}).")
    return int(number)


def _stops(until: Any, end: str | None) -> tuple[str, ...]:
    """Returns the stop strings in the order of the task file, and the text of the stop token last."""
    stops = [until] if isinstance(until, str) else list(until or ())
    if not all(isinstance(stop, str) for stop in stops):
        raise UsageError(f"generation_kwargs until must be a string or a list of strings (got {until!r}).")
    return tuple(dict.fromkeys(stop for stop in (*stops, end) if stop))
