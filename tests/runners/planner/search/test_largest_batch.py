"""Bisection over stated answers, and the largest batch of a small experiment that fits a small chip."""

import dataclasses
import re

import pytest

from layers.errors import UsageError
from registry.resolve import resolve
from runners.machine.chips import CHIPS
from runners.planner.machine import Machine
from runners.planner.search.largest_batch import Largest, bisect, largest_batch


def tried(start, largest, admissible=lambda n: True, most=1000):
    numbers = []

    def fits(number):
        numbers.append(number)
        return number <= largest

    return bisect(start, admissible, fits, most), numbers


@pytest.mark.parametrize("start", [1, 7, 40, 999])
@pytest.mark.parametrize("largest", [1, 2, 7, 36, 37, 38, 512, 999])
def test_the_next_larger_one_is_tried_too(start, largest):
    found, numbers = tried(start, largest)
    assert found == Largest(largest, largest + 1)
    assert {largest, largest + 1} <= set(numbers)
    assert len(numbers) == len(set(numbers)) <= 20


@pytest.mark.parametrize("largest", [3, 4, 11, 12, 300])
def test_only_admissible_numbers_are_tried(largest):
    found, numbers = tried(3, largest, admissible=lambda number: number % 3 == 0)
    assert found == Largest(largest // 3 * 3, largest // 3 * 3 + 3)
    assert all(number % 3 == 0 for number in numbers)


def test_nothing_fits():
    assert tried(8, 0)[0] == Largest(None, 1)


def test_everything_fits():
    assert tried(8, 5000, most=100)[0] == Largest(100, None)


def test_nothing_is_admissible():
    assert tried(8, 100, admissible=lambda number: False)[0] == Largest(None, None)


def test_the_largest_batch_of_a_small_experiment(tmp_path, capsys):
    experiment = resolve("DenseLm8B2x2", ["DEVICE_MESH_SHAPE=1,2", "BATCH_SIZE=4"], smoke=True)
    chip = dataclasses.replace(CHIPS["v3"], hbm_bytes=700_000)
    machine = Machine(chip=chip, virtual_devices=2)
    assert largest_batch(experiment, tmp_path, machine) == 0
    shown = capsys.readouterr().out
    (fits,) = map(int, re.findall(r"Largest batch that fits: --set=BATCH_SIZE=(\d+) \(peak", shown))
    (following,) = map(int, re.findall(r"next larger one does not fit: --set=BATCH_SIZE=(\d+) \(peak", shown))
    assert following == fits + 1
    assert f"BATCH_SIZE={fits}: " in shown
    lines = (tmp_path / "layouts.jsonl").read_text()
    assert largest_batch(experiment, tmp_path, machine) == 0
    assert (tmp_path / "layouts.jsonl").read_text() == lines, "nothing is compiled again"
    assert capsys.readouterr().out == shown


def test_without_a_chip(tmp_path):
    with pytest.raises(UsageError, match=r"--largest_batch compares with a chip's memory and speed. Name a chip"):
        largest_batch(resolve("DenseLm8B2x2", smoke=True), tmp_path / "none", Machine())
    assert not (tmp_path / "none").exists()
