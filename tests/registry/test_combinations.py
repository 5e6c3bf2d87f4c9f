"""Every pair of values of two knobs works together, or is refused by a sentence that names both knobs."""

import itertools

import jax
import numpy as np
import pytest

from layers.errors import VortaroError
from layers.specs import P
from registry.experiment import Experiment
from registry.knobs.stated import reads_of
from registry.records.snapshot import flat_config
from runners.compiled_functions import Updates
from runners.session import Session
from runners.training.checkpoints import Checkpoints
from testing.combinations import choices, experiment_of, explore, refusal, refused_by_a_third
from testing.compose_page import PAGE, updated
from tests.support.programs import compiled_anew


def test_a_sample_of_rows_passes():
    rows, _ = explore(lambda row: refusal(row, 8), seed=1, limit=4)
    assert len(rows) == 4


@pytest.fixture(scope="module")
def explored():
    """On eight devices: what one device refuses, eight refuse too."""
    return explore(lambda row: refusal(row, 8))


@pytest.mark.slow
def test_every_pair_passes_or_is_refused_by_a_sentence_that_names_both(explored):
    """explore() raises for a sentence that does not."""
    rows, refused = explored
    assert len(rows) > 60
    assert len(held(rows[:TRAINED])) > 0.5 * len(held(rows))
    for combination, sentence in refused.items():
        assert len(combination) >= 2
        assert sentence.endswith("."), sentence
    assert all(refused_by_a_third(rows, refused).values())


def held(rows):
    """Returns the pairs of values that some row holds."""
    return {frozenset(pair) for row in rows for pair in itertools.combinations(row.items(), 2)}


@pytest.mark.slow
def test_the_page_shows_what_goes_together(explored):
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text, *explored) == text, "Run: python -m testing.compose_page"


@pytest.mark.slow
def test_changing_a_knob_that_is_read_changes_the_experiment(explored):
    values = choices()
    for row in explored[0][::5]:
        now = experiment_of(row)
        reads, _ = reads_of(now)
        before = described(now)
        for knob in reads & row.keys():
            others = [value for value in values[knob] if value != row[knob]]
            assert any(described(experiment_of({**row, knob: value})) != before for value in others), (knob, row)


def described(cls: type[Experiment]):
    """Returns the configs and the layout of an experiment; None if it is refused."""
    try:
        return flat_config(cls()), cls().layout
    except VortaroError:
        return None


UPDATES, SAVED = 12, 6  # updates, updates before the checkpoint
TRAINED = 5  # rows that train
# Slots, or places, for every token: decoding has other groups, and eight devices receive others than one.
NO_DROPS = {"RECEIVE_FACTOR": None}
# Under ZeRO each device draws its own numbers, and in a pipeline each micro-batch.
NO_NOISE = {"DROPOUT": 0.0, "LAYER_DROPOUT": 0.0, "SECOND_EXPERT": "all"}


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.parametrize("number", range(TRAINED))
def test_a_row_trains_alike_on_one_and_eight_devices_decodes_and_resumes(number, explored, tmp_path):
    row = explored[0][number] | NO_DROPS
    row["CAPACITY_FACTOR"] = None if row["CAPACITY_FACTOR"] is None else 8.0
    row |= NO_NOISE if row["ZERO_STAGE"] is not None or row["STACK"] == P("stage") else {}
    if row["STACK"] == P("stage"):  # balance, and the choices of experts, are those of micro-batches
        row |= {"AUX_LOSS": 0.0} | ({"STACK": P(None)} if row["ROUTING"] == "expert_choice" else {})
    exact = {"float32"} == {row[name] for name in ("DTYPE", "PARAM_DTYPE", "GRADIENT_DTYPE", "MOMENT_DTYPE")}
    row |= {} if exact else {"LEARNING_RATE": 1e-4}  # differences by rounding grow with it
    one, many = (Session(experiment_of(row, count)(), jax.devices()[:count]) for count in (1, 8))
    updates = Updates(one.functions)
    losses, state = train(one, updates, tmp_path)
    assert np.all(np.isfinite(losses))
    with compiled_anew():
        others, _ = train(many, Updates(many.functions))
    np.testing.assert_allclose(losses[:SAVED], others[:SAVED], rtol=5e-4 if exact else 2e-2)
    np.testing.assert_allclose(losses, others, rtol=1e-2 if exact else 5e-2, err_msg="rounding grows step by step")

    resumed, last = train(one, updates, tmp_path)
    assert resumed == losses[SAVED:]
    jax.tree.map(np.testing.assert_array_equal, last, state)

    sees_later_tokens = row["ROUTING"] == "expert_choice" and "experts" in str(row["FFN"])
    if row["OBJECTIVE"] == "causal" and not sees_later_tokens:
        one = Session(experiment_of(row | {"DTYPE": "float32"})(), jax.devices()[:1])
        decoded, expected = decode(one, state.variables)
        assert 0 < np.std(expected) < 1e3
        np.testing.assert_allclose(decoded, expected, rtol=1e-4, atol=1e-4 * np.std(expected))


def train(session: Session, updates: Updates, folder=None):
    """Returns losses and the last state, from the checkpoint in `folder` if there is one; else it saves one."""
    with session.placed():
        checkpoints = None if folder is None else Checkpoints(folder)
        found = None if checkpoints is None else checkpoints.restore(session.abstract.state)
        state, extra = found or (session.functions.init(), {"input": None})
        losses, batches = [], session.host_batches.iterate(session.train.input, extra["input"])
        for step in range(int(state.step), UPDATES):
            batch, after = next(batches)
            state = updates.of(batch)(state, batch, session.seed)
            losses.append(float(state.sums.loss / state.sums.weight))
            if checkpoints is not None and step + 1 == SAVED:
                checkpoints.save(SAVED, state, {"tokens_seen": 0, "input": after}, None)
        if checkpoints is not None:
            checkpoints.close()
    return losses, state


def decode(session: Session, variables):
    """Returns logits by the cache, token by token after a prompt of five, and by teacher forcing."""
    with session.placed():
        tokens = jax.random.randint(jax.random.key(0), (8, 16), 0, 256)
        expected = jax.jit(session.task.logits)(variables, tokens)
        step, state, found = jax.jit(session.task.decode_step), session.task.init_decode_state(8, 16), []
        for start, end in ((0, 5), *((at, at + 1) for at in range(5, 16))):
            logits, state = step(variables, tokens[:, start:end], state)
            found.append(logits)
    return np.stack(found, axis=1)[..., :256], np.asarray(expected[:, 4:, :256])  # without rows that pad the vocabulary
