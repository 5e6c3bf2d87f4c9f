"""Scores and continuations in batches on a mesh are those of single sequences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from registry.resolve import resolve
from runners.evals import placement
from runners.evals.continuation import Continuer, Generation
from runners.evals.placement import Placement
from runners.evals.scoring import Scorer
from runners.session import Session
from tasks.decoding.sampler import Sampler

# Entries by what is special: weights split in two dimensions, a pointer to earlier tokens, codebooks and split rows.
ENTRIES = [("tiny.StdlibTiny", "2,2"), ("gpt.GptStdlib", "4,1")]
ENTRIES += [pytest.param("vq.VQStdlib", "2,2,1", marks=pytest.mark.slow)]
GREEDY = Sampler(temperature=0.0)


def session_of(name, mesh, *overrides):
    knobs = (f"DEVICE_MESH_SHAPE={mesh}", "DTYPE=float32", *overrides)
    return Session(resolve(name, knobs, smoke=True), jax.devices()[: math.prod(map(int, mesh.split(",")))])


def sequences(vocabulary, lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocabulary.size, length).tolist() for length in lengths]


@pytest.mark.parametrize(("name", "mesh"), ENTRIES)
def test_scores_are_those_of_single_sequences(name, mesh):
    session = session_of(name, mesh)
    given = sequences(session.task.vocabulary, (2, 3, 9, 17, 30, 32))
    given += [[*given[2][:-1], last] for last in range(5)] + given[:2]
    with session.placed():
        variables = session.functions.init().variables
        scorer = Scorer(session, Placement(session, batch_tokens=128))
        scores = scorer(variables, given)
        forward = jax.jit(session.task.logits)
        padded = np.zeros((len(given), 32), np.int32)
        for row, ids in enumerate(given):
            padded[row, : len(ids)] = ids  # padding follows, so earlier positions do not depend on it
        logits = np.asarray(forward(variables, jnp.asarray(padded)))
    for ids, score, all_logits in zip(given, scores, logits, strict=True):
        expected = all_logits[: len(ids) - 1] - jax.nn.logsumexp(all_logits[: len(ids) - 1], axis=-1, keepdims=True)
        at = np.arange(len(ids) - 1), np.array(ids[1:])
        np.testing.assert_allclose(score.log_p, np.asarray(expected)[at], atol=2e-5, err_msg=str(ids))
        np.testing.assert_array_equal(score.is_likeliest, all_logits[: len(ids) - 1].argmax(-1) == ids[1:])
    assert scorer.count() == "2 batches of 1 shape"
    assert scorer.count() == "0 batches of 0 shapes"


def test_logits_in_chunks_are_the_logits(monkeypatch):
    """A bound on the logits in memory changes no score."""
    session = session_of("tiny.StdlibTiny", "1,1")
    given = sequences(session.task.vocabulary, (5, 30))
    with session.placed():
        variables = session.functions.init().variables
        complete = Scorer(session, Placement(session))(variables, given)
        monkeypatch.setattr(placement, "LOGITS_PER_SHARD", 256 * 2 * 4)
        in_chunks = Scorer(session, Placement(session))(variables, given)
    for one, other in zip(complete, in_chunks, strict=True):
        np.testing.assert_allclose(one.log_p, other.log_p, atol=1e-6)


def test_continuations_are_those_of_single_prompts():
    session = session_of("tiny.StdlibTiny", "2,2")
    prompts = sequences(session.task.vocabulary, (1, 4, 9, 4))
    settings = Generation(GREEDY, 6, ())
    with session.placed():
        variables = session.functions.init().variables
        continuer = Continuer(session, Placement(session))
        together = continuer(variables, [*prompts, prompts[0]], settings)
        assert continuer.count() == "1 batch of 1 shape"
        alone = [continuer(variables, [prompt], settings)[0] for prompt in prompts]
    assert together == [*alone, alone[0]]


def test_stop_strings_end_a_continuation_within_a_chunk(monkeypatch):
    session = session_of("tiny.StdlibTiny", "1,1")
    vocabulary = session.task.vocabulary
    [prompt] = sequences(vocabulary, [5])
    with session.placed():
        variables = session.functions.init().variables
        continuer = Continuer(session, Placement(session))
        [complete] = continuer(variables, [prompt], Generation(GREEDY, 9, ()))
        stop = vocabulary.decode(complete[3:5])
        expected = next(end for end in range(10) if stop in vocabulary.decode(complete[:end]))
        for chunk in (32, 2):
            monkeypatch.setattr("runners.evals.continuation.CHUNK", chunk)
            assert continuer(variables, [prompt], Generation(GREEDY, 9, ("no", stop))) == [complete[:expected]]


def test_long_computations_report_what_is_done(monkeypatch):
    monkeypatch.setattr(placement, "REPORT_SECONDS", -1.0)
    lines = []
    reminder = placement.Reminder(lines.append, 3000, "Scored")
    for count in (1000, 1500, 500):
        reminder.add(count)
    assert lines == ["Scored 1,000 of 3,000 sequences", "Scored 2,500 of 3,000 sequences"]


def test_random_continuations_differ_and_repeat():
    session = session_of("tiny.StdlibTiny", "1,1")
    with session.placed():
        variables = session.functions.init().variables
        continuer, settings = Continuer(session, Placement(session)), Generation(Sampler(), 8, ())
        one, other = continuer(variables, [[5, 6]] * 2, settings)
        continuer.count()
        again = continuer(variables, [[5, 6]] * 2, settings)
    assert one != other
    assert again == [one, other]
