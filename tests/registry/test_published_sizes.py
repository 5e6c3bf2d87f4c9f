"""Entries for weights that others published have as many of them."""

import pytest

from registry.records.snapshot import snapshot
from registry.resolve import resolve

SIZES = {
    "gpt2.Gpt2Small": 124_439_808,
    "gpt2.Gpt2Medium": 354_823_168,
    "gpt2.Gpt2Large": 774_030_080,
    "gpt2.Gpt2XL": 1_557_611_200,
    "little_gpt.LittleGpt124M": 124_439_808,
    "little_gpt.LittleGpt127M": 127_030_272,
    "little_gpt.LittleGpt303M": 303_825_408,
    "little_gpt.LittleGpt354M": 354_823_168,
    "little_gpt.LittleGpt1B": 1_009_305_600 + 2 * 2048,  # and the embedding's norm
}


@pytest.mark.parametrize("name", SIZES)
def test_size(name):
    assert snapshot(resolve(name))["totals"]["parameters"] == SIZES[name]
