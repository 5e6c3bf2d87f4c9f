"""Speculative decoding: greedy tokens are those of the plain loop, and others have the model's distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.decoding.generation import generate
from tasks.decoding.prompts import pad_prompts
from tasks.decoding.sampler import Sampler
from tasks.decoding.speculation import Draft, speculate, speculate_in_place
from tests.support.references.models import task_of, train_losses, variables_of

GREEDY = Sampler(temperature=0.0)
VARIED = Sampler(temperature=0.0, repetition_penalty=1.5)  # greedy, but not the same token again and again
DRAFT = task_of(NUM_LAYERS=1)
PROMPTS = [[3, 4], [1, 3, 5, 7, 9, 11], [9]]


@pytest.fixture(scope="module")
def drafting():
    return train_losses(30, LEARNING_RATE=1e-2, NUM_LAYERS=1)[1].variables


def lively(task):
    """Variables with which the likeliest token changes from position to position."""
    return jax.tree.map(lambda x: 3 * x, variables_of(task, seed=3))


def both(task, variables, drafting, sampler, new_tokens=14, draft_tokens=3, prompts=PROMPTS, **choices):
    """The plain tokens and memory, and those with a draft."""
    tokens, real = pad_prompts(prompts)
    given = (tokens, real, jax.random.key(0))
    choices |= {"new_tokens": new_tokens, "sampler": sampler, "capacity": 40}
    plain = generate(task, variables, *given, **choices)
    return plain, speculate(task, variables, drafting, *given, draft=Draft(DRAFT, draft_tokens), **choices)


MIXERS = {
    "dense": {},
    "learned positions": {"POSITIONS": "learned", "SEQ_LEN": 20},
    "window": {"POSITIONS": "rotary", "ATTENTION_WINDOW": 4},
    "vq": {"MIXER": "vq", "POSITIONS": "distance", "HEAD_DIM": 8, "NUM_CODES": 8, "BLOCK_LEN": 4},
    "full": {"MIXER": "distance", "POSITIONS": "distance", "HEAD_DIM": 8},
    "static sgu": {"MIXER": "static_sgu"},
    "pointer": {"HEAD_QK": 4},
    "pattern": {"ATTENTION_WINDOW": (None, 4), "POSITIONS": "alibi"},
}


@pytest.mark.parametrize("knobs", MIXERS.values(), ids=MIXERS)
def test_greedy_tokens_are_those_of_the_plain_loop(knobs, drafting):
    task = task_of(**knobs)
    (plain, memory), (drafted, other) = both(task, lively(task), drafting, VARIED)
    assert drafted.tolist() == plain.tolist()
    assert len(set(plain.ravel().tolist())) > 6
    assert int(other.rounds) >= 4, "at most four tokens per round, after the first"
    for name in ("unread_b", "position_b", "drawn"):
        assert getattr(memory, name).tolist() == getattr(other, name).tolist()


def test_a_draft_equal_to_the_model_is_always_accepted(drafting):
    for sampler in (GREEDY, Sampler(temperature=0.7, top_k=9, repetition_penalty=1.3)):
        _, (_, memory) = both(DRAFT, drafting, drafting, sampler, new_tokens=13)
        assert int(memory.rounds) == 3, "one token, then four per round"


def test_repetition_counts_and_stop_tokens_are_those_of_the_plain_loop(drafting):
    task, sampler = task_of(), Sampler(temperature=0.0, repetition_penalty=1.5)
    variables = lively(task)
    (free, _), _ = both(task, variables, drafting, sampler)
    for stops in [(int(free[0, 3]),), (int(free[1, 5]), int(free[2, 1])), tuple(range(32))]:
        (plain, memory), (drafted, other) = both(task, variables, drafting, sampler, stop_ids=stops)
        assert drafted.tolist() == plain.tolist()
        ended = np.isin(plain, stops).any(axis=1)
        assert other.counts_bv[~ended].tolist() == memory.counts_bv[~ended].tolist()


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 40])
def test_any_number_of_tokens(new_tokens, drafting):
    """40 tokens unstack the layers."""
    task = task_of()
    tokens, real = pad_prompts([[1, 2]])
    given, variables = (tokens, real, jax.random.key(0)), lively(task)
    choices = {"new_tokens": new_tokens, "sampler": GREEDY, "capacity": 60}
    plain, _ = generate(task, variables, *given, **choices)
    drafted, _ = speculate(task, variables, drafting, *given, draft=Draft(DRAFT, 5), **choices)
    assert drafted.tolist() == plain.tolist()


@pytest.mark.parametrize("knobs", [{}, MIXERS["window"]], ids=["dense", "window"])
def test_in_chunks_as_at_once(knobs, drafting):
    task = task_of(**knobs)
    variables = lively(task)
    (plain, _), _ = both(task, variables, drafting, GREEDY, new_tokens=12)
    tokens, real = pad_prompts(PROMPTS)
    drawn, memory = [], None
    for run, size in [(speculate, 5), (speculate_in_place, 4), (speculate_in_place, 3)]:
        choices = {"new_tokens": size, "sampler": GREEDY, "capacity": 40, "draft": Draft(DRAFT, 3)}
        part, memory = run(task, variables, drafting, tokens, real, jax.random.key(0), memory=memory, **choices)
        drawn.append(np.asarray(part))
        tokens = real = np.zeros((len(PROMPTS), 0), np.int32)
    assert np.concatenate(drawn, axis=1).tolist() == plain.tolist()


def test_random_tokens_have_the_distribution_of_the_plain_loop(drafting):
    """Of the first three tokens of 4,096 rows, whose number of accepted tokens differs between seeds."""
    task, sampler = task_of(), Sampler(temperature=1.5, top_k=6)
    variables, rows = lively(task), 32
    tokens, real = pad_prompts([[5, 1]] * rows)
    choices = {"new_tokens": 3, "sampler": sampler, "capacity": 12}
    plain, drafted = [], []
    for seed in range(4096 // rows):
        given = (tokens, real, jax.random.key(seed))
        plain.append(generate(task, variables, *given, **choices)[0])
        drafted.append(speculate(task, variables, drafting, *given, draft=Draft(DRAFT, 2), **choices)[0])
    for place in range(3):
        counts = [np.bincount(np.concatenate(drawn)[:, place], minlength=32) for drawn in (plain, drafted)]
        total = counts[0] + counts[1]
        statistic = float(np.sum((counts[0] - counts[1]) ** 2 / np.maximum(total, 1)))
        freedom = int(np.sum(total > 0)) - 1
        assert statistic < freedom + 4 * np.sqrt(2 * freedom), "chi-squared of two samples"


def test_a_draft_with_other_rows_of_padding():
    """The embedding of the draft has more rows, or fewer, than that of the model."""
    for rows in (24, 40):
        small = task_of(NUM_LAYERS=1, VOCAB_SIZE=rows)
        task = task_of()
        tokens, real = pad_prompts([[3, 4]])
        given, choices = (tokens, real, jax.random.key(0)), {"new_tokens": 9, "sampler": GREEDY, "capacity": 20}
        variables = lively(task)
        plain, _ = generate(task, variables, *given, **choices)
        drafted, _ = speculate(task, variables, variables_of(small), *given, draft=Draft(small, 3), **choices)
        assert drafted.tolist() == plain.tolist()


def test_probabilities_are_those_that_tokens_are_drawn_with():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.15, 0.1]]))
    assert Sampler(temperature=0.0).probabilities(logits).tolist() == [[1, 0, 0, 0]]
    np.testing.assert_allclose(Sampler(top_k=2).probabilities(logits), [[2 / 3, 1 / 3, 0, 0]], rtol=1e-6)
