"""Every pair of values of two knobs works together, or is refused by a sentence that names both knobs."""

import pytest

from layers.errors import VortaroError
from registry.checks import check
from registry.experiment import Experiment
from registry.records.snapshot import flat_config
from registry.stated_knobs import reads_of
from testing.combinations import Row, choices, experiment_of, explore


def refusal(row: Row, *all_devices: int) -> str | None:
    """Returns the sentence by which `check` refuses a row on a number of devices; None if it passes."""
    try:
        for devices in all_devices:
            check(experiment_of(row, devices)())
    except VortaroError as error:
        return str(error)
    return None


def test_a_sample_of_rows_passes():
    rows, _ = explore(lambda row: refusal(row, 8), seed=1, limit=20)
    assert len(rows) == 20


@pytest.fixture(scope="module")
def explored():
    return explore(lambda row: refusal(row, 1, 8))


@pytest.mark.slow
def test_every_pair_passes_or_is_refused_by_a_sentence_that_names_both(explored):
    """explore() raises for a sentence that does not."""
    rows, refused = explored
    assert len(rows) > 60
    for combination, sentence in refused.items():
        assert len(combination) >= 2
        assert sentence.endswith("."), sentence


@pytest.mark.slow
def test_changing_a_knob_that_is_read_changes_the_experiment(explored):
    values = choices()
    for row in explored[0]:
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
