"""Padding after the tokens of a row changes nothing: neither loss and gradient nor codebooks, experts and filters."""

import operator

import jax
import numpy as np
import pytest

from tasks.batch import Batch, empty_batch, fields_of_all, with_fields
from tests.support.references.models import task_of, variables_of

KINDS = {
    "attention": {},
    "bidirectional": {"OBJECTIVE": "masked"},
    "vq": {"MIXER": "vq", "POSITIONS": "distance", "NUM_CODES": 8, "BLOCK_LEN": 4, "MEMORY_LEN": 4},
    "experts": {"FFN": "experts", "NUM_EXPERTS": 4, "CAPACITY_FACTOR": 1.0},
    "expert choice": {"FFN": "experts", "NUM_EXPERTS": 4, "ROUTING": "expert_choice", "CAPACITY_FACTOR": 1.0},
    "no slots": {"FFN": "experts", "NUM_EXPERTS": 4, "ROUTING": "top_k", "CAPACITY_FACTOR": None, "BIAS_RATE": 0.1},
    "static sgu": {"MIXER": "static_sgu", "POSITIONS": "none"},
    "pointer": {"HEAD_QK": 8},
}
LENGTHS = np.array([[16], [9], [1], [0]])


def rows(seed: int, *, marks: bool = True) -> Batch:
    """Four rows of 16 positions with the same tokens for every seed, and other ids at padding."""
    tokens, padding = (np.random.default_rng(s).integers(1, 32, (2, 4, 16)).astype(np.int32) for s in (0, seed))
    is_token = np.arange(16) < LENGTHS
    inputs, targets = np.where(is_token, tokens, padding)
    return Batch(inputs, targets, is_token.astype(np.float32), is_token=is_token if marks else None)


def outcomes(task, *batches):
    """Loss, gradient, metrics and updates of variables without gradient, for each batch."""
    variables = variables_of(task)

    @jax.jit
    def run(params, batch):
        loss = lambda params: task.loss(variables | {"params": params}, batch, rng=jax.random.key(1))
        (loss, output), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.leaves((loss, gradient, output.metrics, output.updates))

    return [run(variables["params"], batch) for batch in batches]


def near(a, b):
    return all(np.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_at_padding_change_nothing(kind):
    batch = rows(1)
    positions = np.where(batch.is_token, np.arange(16, dtype=np.int32), 0)
    segments = batch.replace(is_token=None, segment_ids=batch.is_token.astype(np.int32), positions=positions)
    unmarked = (rows(1, marks=False), rows(2, marks=False))
    found = outcomes(task_of(**KINDS[kind]), batch, rows(2), segments, *unmarked)
    assert near(found[0], found[1])
    assert near(found[0], found[2])
    assert near(found[3], found[4]) == (kind in ("attention", "static sgu", "pointer"))


@pytest.mark.parametrize("kind", ["attention", "vq", "experts", "static sgu", "pointer"])
def test_rows_in_pieces_keep_the_kind_of_their_state(kind):
    """A state has numbers of segments, whatever marks the padding: pieces of a row are read by one program."""
    task, batch = task_of(**KINDS[kind]), rows(1)
    variables, state = variables_of(task), task.init_decode_state(4, 16)
    kinds = lambda state: jax.tree.map(lambda x: (x.shape, x.dtype), state)
    given, losses = kinds(state), []
    for places in (slice(0, 8), slice(8, 16)):
        piece = jax.tree.map(operator.itemgetter((slice(None), places)), batch)
        objective, output = task.loss(variables, piece, state)
        state = output.state
        losses.append(float(objective))
        assert kinds(state) == given
    if kind not in ("experts", "vq"):  # slots and the mean of the commit loss are those of a piece
        assert sum(losses) == pytest.approx(float(task.loss(variables, batch)[0]), rel=1e-5)


def test_codebooks_count_tokens_only():
    task, batch = task_of(**KINDS["vq"]), rows(1)
    _, output = task.loss(variables_of(task), batch, rng=jax.random.key(1))
    added = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(output.updates) if "count" in str(path[-1])]
    tokens = batch.is_token.sum()
    assert [float(leaf.sum()) for leaf in added] == pytest.approx([tokens * leaf.size / 8 for leaf in added])


def test_programs_are_traced_with_the_fields_of_batches():
    kinds = lambda batch: jax.tree.map(lambda x: (x.shape, x.dtype), batch)
    assert kinds(empty_batch(4, 16, {"is_token"})) == kinds(rows(1))


def test_rows_of_a_mixture_have_the_same_fields():
    """Positions before the last target are tokens, also those of weight 0 (a prompt)."""
    prompted = rows(1, marks=False)
    prompted.weights[:, :1] = 0
    expected = np.arange(16) < np.where(LENGTHS == 1, 0, LENGTHS)
    assert fields_of_all([{"is_token"}, set()]) == {"is_token"}
    assert with_fields(prompted, set()) is prompted
    np.testing.assert_array_equal(with_fields(prompted, {"is_token"}).is_token, expected)
    assert fields_of_all([{"is_token"}, {"segment_ids", "positions"}]) == {"segment_ids", "positions"}
    for batch, is_token in ((prompted, expected), (rows(1), rows(1).is_token)):
        segmented = with_fields(batch, {"segment_ids", "positions"})
        assert segmented.is_token is None
        np.testing.assert_array_equal(segmented.segment_ids, is_token)
        np.testing.assert_array_equal(segmented.positions, np.where(is_token, np.arange(16), 0))
