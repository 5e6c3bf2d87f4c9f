"""Knobs in docs/explanation/mup.md: every row of its table of sweeps is a valid experiment."""

import re

import pytest

from registry.checks import check
from registry.resolve import find, resolve
from tests.conftest import ROOT

PAGE = (ROOT / "docs/explanation/mup.md").read_text()
SWEEPS = PAGE.partition("<!-- sweeps -->")[2].partition("<!-- end of sweeps -->")[0]
ROWS = {
    cells[1].strip(): re.findall(r"`([A-Z0-9_]+=[^`]+)`", cells[2])
    for cells in (line.split("|") for line in SWEEPS.splitlines() if line.count("|") == 4)
    if "=" in cells[2]
}


def test_the_table_was_read():
    assert len(ROWS) >= 24
    assert all(ROWS.values())


@pytest.mark.parametrize("preset", ["mu.MuSmall", "mu.MuLarge"])  # one column, and four
@pytest.mark.parametrize("name", ROWS)
def test_each_sweep_is_a_valid_experiment(name, preset):
    made = resolve(preset, ROWS[name])
    check(made)
    assert type(made).knobs() != find(preset).knobs()
