"""Layouts have a row for every weight, and follow from rules on the letters of dimensions, with listed exceptions."""

import importlib
import pkgutil

import flax.linen as nn
import pytest

import layers
from layers.specs import P
from registry.layouts import LAYOUTS


def weights_of_layers():
    """The rows that modules of layers/ list in SPECS, without activations, whose names have a batch dimension."""
    found = set()
    for module in pkgutil.walk_packages(layers.__path__, "layers."):
        for made in vars(importlib.import_module(module.name)).values():
            if isinstance(made, type) and issubclass(made, nn.Module):
                found |= set(getattr(made, "SPECS", ()))
    is_activation = lambda row: "b" in row.rpartition("_")[2] or "g" in row.rpartition("_")[2]
    return {row for row in found if not is_activation(row)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_a_row_for_every_weight(name):
    assert set(LAYOUTS[name].weights) == weights_of_layers()
    axes = {axis for spec in LAYOUTS[name].weights.values() for axis in spec if axis}
    axes |= {axis for spec in LAYOUTS[name].activations.values() for axis in spec if axis}
    assert axes <= set(LAYOUTS[name].axes)


# By layout: the axis of each letter in matrices, vectors and tables; `exceptions` hold what does not follow.
SHARDED = {"m": "data", "n": "model", "k": "model", "a": "model", "f": "model", "v": "model"}
RULES = {
    "fully_sharded": SHARDED,
    "mup_2d": {letter: {"data": "X", "model": "Y"}[axis] for letter, axis in SHARDED.items()},
}
VECTORS = {"fully_sharded": {"m": None}, "mup_2d": {"m": "Y"}}  # of letter m alone
EXCEPTIONS = {
    "fully_sharded": {
        "router_me": P(None, None),
        "expert_in_emf": P("data", None, "model"),
        "expert_gate_emf": P("data", None, "model"),
        "expert_out_efm": P("data", "model", None),
        "value_mkf": P("data", "model", None),  # one axis cannot split both heads and values
        "gate_mnf": P("data", "model", None),
        "attention_out_nfm": P("model", None, "data"),
    },
    "mup_2d": {
        "embedding_vm": P(None, "Y"),  # embedding and head over columns alone
        "unembedding_mv": P("Y", None),
        "unembedding_bias_v": P(None),
        "position_tm": P(None, "Y"),
        "router_me": P(None, None),
        "expert_in_emf": P("X", None, "Y"),
        "expert_gate_emf": P("X", None, "Y"),
        "expert_out_efm": P("X", "Y", None),
        "value_mkf": P("X", "Y", None),
        "gate_mnf": P("X", "Y", None),
        "attention_out_nfm": P("Y", None, "X"),
    },
}


@pytest.mark.parametrize("name", RULES)
def test_rows_follow_rules_with_listed_exceptions(name):
    for row, spec in LAYOUTS[name].weights.items():
        letters = row.rpartition("_")[2]
        rule = RULES[name] | (VECTORS[name] if letters == "m" else {})
        expected = EXCEPTIONS[name].get(row, P(*[rule.get(letter) for letter in letters]))
        assert spec == expected, row
