"""Mixtures of experts as experiments: the groups of all batches, and one layout for products that are made as one."""

import pytest

from layers.errors import UsageError
from registry.build import build
from registry.experiments.gshard import MoeLm8x2B
from registry.layouts import LAYOUTS

Small = MoeLm8x2B.Smoke().derive(NUM_STEPS=100)
STAGED = {"STAGED_STEPS": 4, "LENGTH_STAGES": (4, 16)}


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"TBPTT_LEN": 4},
        {"GRADIENT_ACCUMULATION": 2},
        {"TBPTT_LEN": 16, "GRADIENT_ACCUMULATION": 4},
        STAGED,
        STAGED | {"STAGED_ROWS": "reshape"},
        {"SEQ_LEN": 48, "LENGTH_START": 8, "LENGTH_MULTIPLE": 8, "STAGED_STEPS": 10},
    ],
)
def test_groups_are_refused_that_a_batch_of_an_update_does_not_fill(knobs):
    experiment = Small.derive(**knobs)
    shapes = build(experiment().Train(), "train").input.shapes()
    assert experiment().update_shapes() == shapes
    for groups in (8, 12, 32, 48, 64, 128):
        candidate = experiment.derive(NUM_GROUPS=groups)()
        if all(rows * length // experiment.GRADIENT_ACCUMULATION % groups == 0 for rows, length in shapes):
            candidate.Task()
        else:
            with pytest.raises(UsageError, match=rf"NUM_GROUPS must divide the .* \(got {groups}\)"):
                candidate.Task()


def test_matrices_of_one_product_have_one_layout():
    """The compiler would rearrange one of them in each layer and update."""
    for name, layout in LAYOUTS.items():
        for into, gate in (("ffn_in_mf", "ffn_gate_mf"), ("expert_in_emf", "expert_gate_emf")):
            assert layout.weights[into] == layout.weights[gate], (name, into)
