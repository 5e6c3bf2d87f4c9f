"""Slopes over widths, their bands, and the flags --widths and --rates."""

import dataclasses

import numpy as np
import pytest

from layers.errors import UsageError
from registry.resolve import resolve
from runners.widths.coord_gates import Gate, gates, slope
from runners.widths.widths import parse_rates, parse_widths, rate_text


def test_slopes():
    assert slope((64, 128, 256), (1, 2, 4)) == pytest.approx(1)
    assert slope((64, 128), (4, 1)) == pytest.approx(-2)
    assert slope((64, 128), (0, 0)) is None
    assert np.isnan(slope((64, 128), (0, 1)))
    assert np.isnan(slope((64, 128), (np.nan, 1)))


def test_bands():
    gate = Gate(activation="x", statistic="size", step=0, slope=0.3, low=-0.2, high=0.2)
    assert not gate.ok
    assert not dataclasses.replace(gate, slope=float("nan")).ok
    assert gate.beyond == pytest.approx(0.1)
    kinds = {"size": [0.0, 0.0, 0.0], "change": [None, 0.0, 0.9]}
    outcomes = lambda name, logits=-0.5: {
        (g.statistic, g.step, g.ok) for g in gates({name: kinds, "layer 1 residual_bsm": kinds}, logits, 2)
        if g.activation == name
    }  # fmt: skip
    assert outcomes("logits_bsv") == {("size", 0, False)}
    assert outcomes("logits_bsv", 0.0) == {("size", 0, True), ("change", 2, False)}
    assert outcomes("logits_by_head_bsv") == {("change", 2, False)}
    assert outcomes("logits_by_head_bsv", 0.0) == set()
    assert outcomes("embedded") == {("size", 0, True), ("change", 1, True), ("change", 2, False)}
    assert outcomes("layer 0 mixer/query_bsnd") == {("size", 0, True), ("change", 1, True), ("change", 2, False)}
    assert outcomes("layer 1 mixer/query_bsnd") == {("size", 0, True)}
    assert outcomes("layer 0 mixer/scores") == {("size", 0, True)}
    assert outcomes("layer 1 mixer/scores") == set()


def test_widths_and_rates_as_they_are_written():
    tiny = resolve("mu.MuTiny")
    assert parse_widths(None, tiny) == (64, 128, 256)
    assert parse_widths("256,64", tiny) == (64, 256)
    assert parse_widths(None, resolve("mu.MuDense8B", smoke=True)) == (128, 256, 512)  # Adafactor
    assert parse_rates("2^-3..2^-1") == (0.125, 0.25, 0.5)
    assert parse_rates("0.01,2^-3") == (0.01, 0.125)
    assert [rate_text(rate) for rate in (0.125, 0.01)] == ["2^-3", "0.01"]
    for text, message in (
        ("64", "at least two widths"),
        ("64,64", "got 64 twice"),
        ("64,b", "got 'b'"),
        ("0,64", "got '0'"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_widths(text, tiny)
    for text, message in (("2^-1..2^-3", r"Set --rates=2\^-3..2\^-1"), ("0.1..0.3", "a range between powers of two")):
        with pytest.raises(UsageError, match=message):
            parse_rates(text)
    for text in ("x", "0^-1", "-1^0.5", "-1,2", "", "2^-3..", "1,1e999", "nan,1"):
        with pytest.raises(UsageError, match="must be positive numbers"):
            parse_rates(text)
