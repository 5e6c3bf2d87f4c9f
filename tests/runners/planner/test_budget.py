"""Device-hours and cost of a number of tokens."""

import pytest

from layers.errors import UsageError
from runners.planner.budget import Budget, rows

PLAN = {"step": "train", "devices": 64, "flops_per_token": 6e9, "roofline_tokens_per_second": 1e6}


def budget(tokens=300e9, price=2.5, mfu=0.4):
    return Budget.named(tokens, price, mfu, has_chip=True)


def test_hours_are_those_of_all_devices_together():
    found = budget().of(PLAN, 989e12)
    assert found["bound_device_hours"] == pytest.approx(300e9 / 1e6 * 64 / 3600)
    assert found["bound_cost"] == pytest.approx(2.5 * found["bound_device_hours"])
    assert found["estimate_device_hours"] == pytest.approx(300e9 * 6e9 / (0.4 * 989e12) / 3600)
    assert found["estimate_cost"] == pytest.approx(2.5 * found["estimate_device_hours"])


def test_a_perfect_estimate_is_the_bound_of_computation():
    speed = 64 * 989e12 / PLAN["flops_per_token"]
    found = budget(mfu=1.0).of({**PLAN, "roofline_tokens_per_second": speed}, 989e12)
    assert found["estimate_device_hours"] == pytest.approx(found["bound_device_hours"])
    decoding = budget(mfu=1.0).of({**PLAN, "step": "decode"}, 989e12)
    assert decoding["estimate_device_hours"] == pytest.approx(found["estimate_device_hours"] / 3)


def test_bounds_are_marked_as_bounds():
    plan = {**PLAN, "budget": budget().of(PLAN, 989e12)}
    assert dict(rows(plan)) == {
        "3e11 tokens, by the roofline": "at least 5,333 device-hours (3.47 days on 64 devices), cost at least 13,333 "
        "at 2.5 per device-hour",
        "3e11 tokens, at an MFU of 40.0%": "about 1,264 device-hours (0.823 days on 64 devices), cost about 3,160 at "
        "2.5 per device-hour",
    }
    assert dict(rows({**plan, "roofline_is_estimate": True}))["3e11 tokens, by the roofline"].startswith("about 5,333")
    assert rows(PLAN) == []


def test_without_a_price_or_a_program():
    free = {**PLAN, "budget": budget(price=None, mfu=None).of(PLAN, 989e12)}
    assert rows(free) == [("3e11 tokens, by the roofline", "at least 5,333 device-hours (3.47 days on 64 devices)")]
    refused = {key: value for key, value in PLAN.items() if key != "roofline_tokens_per_second"}
    assert "--mfu=0.4 estimates it" in rows({**refused, "budget": budget(mfu=None).of(refused, 989e12)})[0][1]
    ((name, _),) = rows({**refused, "budget": budget().of(refused, 989e12)})
    assert name == "3e11 tokens, at an MFU of 40.0%"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": None, "mfu": None}, r"--price needs a number of tokens \(got --price=2.5\)\. Set --tokens=300e9"),
        ({"tokens": None, "price": None}, r"--mfu needs a number of tokens"),
        ({"tokens": 0.0}, r"--tokens must be above 0 \(got 0\)"),
        ({"tokens": float("nan")}, r"--tokens must be above 0 \(got nan\)"),
        ({"price": -1.0}, r"--price must be above 0 \(got -1\)"),
        ({"mfu": 1.5}, r"--mfu must be above 0 and at most 1 \(got 1.5\)"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        budget(**values)


def test_it_needs_a_chip_and_one_plan():
    with pytest.raises(UsageError, match=r"--tokens=3e\+11 needs a chip"):
        Budget.named(300e9, None, None, has_chip=False)
    assert Budget.named(None, None, None, has_chip=False) is None
