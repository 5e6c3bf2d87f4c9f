"""Prompts of a batch: what they share is read once, and a prompt with several continuations is too."""

import jax
import numpy as np
import pytest

from tasks.decoding import prompts as of_prompts
from tasks.decoding.generation import generate
from tasks.decoding.prompts import pad_prompts, shared_tokens
from tasks.decoding.sampler import Sampler
from tests.support.references.models import task_of, variables_of

GREEDY = Sampler(temperature=0.0, repetition_penalty=1.5)
START = [(7 * i + i // 5) % 32 for i in range(20)]
UNEQUAL = [[*START, 3], [*START, 1, 5, 9, 2, 8], [*START[:14], 4, 4, 4]]
EQUAL = [[*START, 3, 1], [*START, 4, 1], [*START, 5, 9]]


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(of_prompts, "SHARED_TOKENS", 4)


def test_what_prompts_share():
    movable, window = task_of(), task_of(ATTENTION_WINDOW=4, POSITIONS="rotary")
    assert shared_tokens(movable, UNEQUAL) == 12, "14, in multiples of four"
    assert shared_tokens(window, UNEQUAL) == 0, "the state of a window cannot be moved"
    assert shared_tokens(window, EQUAL) == 20
    assert shared_tokens(window, EQUAL, length=22) == 20
    assert shared_tokens(window, EQUAL, length=23) == 0, "columns of padding"
    assert shared_tokens(movable, EQUAL, length=23) == 20
    assert shared_tokens(movable, EQUAL, length=43) == 0, "more padding than shared tokens"
    assert shared_tokens(movable, UNEQUAL[:1]) == 0
    assert shared_tokens(movable, [START, START]) == 16, "not the last token"
    assert shared_tokens(movable, [[1, 2, 3], [1, 2, 4]]) == 0


def test_tokens_that_compete_for_slots_are_read_together():
    slots = task_of(FFN="experts", NUM_EXPERTS=4, EXPERT_DIM=8, CAPACITY_FACTOR=1.25)
    assert slots.decoding_caveat() is not None
    assert shared_tokens(slots, EQUAL) == 0


MODELS = {
    "dense": ({}, UNEQUAL),
    "learned positions": ({"POSITIONS": "learned", "SEQ_LEN": 40}, UNEQUAL),
    "distances": ({"MIXER": "distance", "POSITIONS": "distance", "HEAD_DIM": 8}, UNEQUAL),
    "alibi, pointer": ({"POSITIONS": "alibi", "HEAD_QK": 4}, UNEQUAL),
    "window": ({"POSITIONS": "rotary", "ATTENTION_WINDOW": 6}, EQUAL),
    "vq": ({"MIXER": "vq", "POSITIONS": "distance", "HEAD_DIM": 8, "NUM_CODES": 8, "BLOCK_LEN": 4}, EQUAL),
}


@pytest.mark.parametrize(("knobs", "prompts"), MODELS.values(), ids=MODELS)
def test_reading_once_gives_the_tokens_and_state_of_reading_each(knobs, prompts):
    task = task_of(**knobs)
    variables = jax.tree.map(lambda x: 3 * x, variables_of(task, seed=3))
    shared = shared_tokens(task, prompts)
    assert shared > 0
    given = (task, variables, *pad_prompts(prompts), jax.random.key(0))
    choices = {"new_tokens": 12, "sampler": GREEDY, "capacity": 40}
    tokens, memory = generate(*given, **choices)
    once, other = generate(*given, **choices, shared=shared)
    assert once.tolist() == tokens.tolist()
    assert len(set(map(tuple, tokens.tolist()))) == 3
    assert other.position_b.tolist() == memory.position_b.tolist()
    further, nothing = {**choices, "new_tokens": 3}, np.zeros((3, 0), np.int32)
    continued = [generate(*given[:2], nothing, nothing, given[4], **further, memory=m)[0] for m in (memory, other)]
    assert continued[0].tolist() == continued[1].tolist()


@pytest.mark.parametrize("knobs", [{}, MODELS["vq"][0]], ids=["dense", "vq"])
def test_copies_of_prompts_are_rows_of_equal_prompts(knobs):
    task, sampler = task_of(**knobs), Sampler(temperature=2.0)
    variables = variables_of(task)
    choices = {"new_tokens": 6, "sampler": sampler, "capacity": 40}
    rows = [prompt for prompt in EQUAL[:2] for _ in range(3)]
    each, _ = generate(task, variables, *pad_prompts(rows), jax.random.key(0), **choices)
    once, memory = generate(task, variables, *pad_prompts(EQUAL[:2]), jax.random.key(0), **choices, copies=3)
    assert once.tolist() == each.tolist()
    assert len(set(map(tuple, once.tolist()))) == 6
    assert memory.position_b.tolist() == [27] * 6
