"""Difference of two experiments: knobs, config, weights, totals, plans."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from registry.records.phase_cells import sentence
from registry.records.record import Snapshot, made_by

Difference = dict[str, Any]


def diff(a: Snapshot, b: Snapshot, plans: Sequence[Mapping[str, Any]] | None = None) -> Difference:
    """Returns the differences from `a` to `b`; lists are empty where the two are equal. "code" is filled in even if
    equal, and does not count as a difference. `plans` are those of both sides; without them "plan" is None.

    A config path of only one side has the value None on the other. Paths under a class that differs are omitted if the
    other side lacks them, because the difference of the class implies them.
    """
    figures = None if plans is None else differing_figures(plans)
    return {
        "a": _title(a),
        "b": _title(b),
        "knobs": _knobs(a["knobs"], b["knobs"]),
        "config": _config(a["config"], b["config"]),
        "phases": _phases(a.get("phases", []), b.get("phases", [])),
        "weights": _weights(a, b),
        "totals": {
            key: {"a": a["totals"][key], "b": b["totals"][key]}
            for key in a["totals"]
            if key in b["totals"] and a["totals"][key] != b["totals"][key]
        },
        "mesh": [] if a["mesh"] == b["mesh"] else [a["mesh"], b["mesh"]],
        "plan": None if figures is None else [{"figure": name, "a": x, "b": y} for name, (x, y) in figures.items()],
        "code": _code(a, b),
    }


def _code(a: Snapshot, b: Snapshot) -> Difference:
    """Returns the code of each side; empty if it is unknown for one of them."""
    made = {"a": made_by(a), "b": made_by(b)}
    return made if all(made.values()) else {}


def is_equal(difference: Difference) -> bool:
    """Returns whether nothing differs."""
    return not any(difference[key] for key in ("knobs", "config", "phases", "weights", "totals", "mesh", "plan"))


def _title(side: Snapshot) -> str:
    words = [side["experiment"], *(["--smoke"] if side["smoke"] else []), *(f"--set={o}" for o in side["overrides"])]
    return " ".join(words)


def differing(sides: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the keys whose values differ among sides, with the value of each side, None where it lacks the key."""
    keys = dict.fromkeys(key for side in sides for key in side)
    values = {key: [side.get(key) for side in sides] for key in keys}
    return {key: of for key, of in values.items() if any(each != of[0] for each in of[1:])}


def differing_figures(plans: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Returns the numbers that differ among plans, as `differing`, by path: `exchanges.all-gather data f32.count`."""
    return differing([dict(_figures(plan, "")) for plan in plans])


def _figures(plan: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in plan.items():
        if isinstance(value, Mapping):
            yield from _figures(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differing_config(configs: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """Returns the config paths that differ, as `differing`, without those that a class above them implies."""
    changed = differing(configs)
    implied = lambda path: any(path.startswith(parent + ".") for parent in changed)
    return {path: values for path, values in changed.items() if None not in values or not implied(path)}


def _knobs(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    values = lambda side: {name: knob["value"] for name, knob in side.items()}
    owner = lambda side, name: side.get(name, {}).get("owner")
    return [
        {"knob": name, "a": left, "b": right, "owner_a": owner(a, name), "owner_b": owner(b, name)}
        for name, (left, right) in differing([values(a), values(b)]).items()
    ]


def _config(a: dict[str, str], b: dict[str, str]) -> list[Difference]:
    return [{"path": path, "a": left, "b": right} for path, (left, right) in differing_config([a, b]).items()]


def _phases(a: list[Any], b: list[Any]) -> list[Difference]:
    sides = [(number, sentence(number, a), sentence(number, b)) for number in range(max(len(a), len(b)))]
    same = lambda number: a[number : number + 1] == b[number : number + 1]
    return [{"phase": number, "a": one, "b": two} for number, one, two in sides if not same(number)]


def _weights(a: Snapshot, b: Snapshot) -> list[Difference]:
    left, right = ({row["path"]: row for row in side["weights"]} for side in (a, b))
    rows = []
    for path in [*left, *(path for path in right if path not in left)]:
        one, two = left.get(path), right.get(path)
        if one is None or two is None:
            rows.append({"path": path, "a": one, "b": two, "changed": ["only in " + ("b" if one is None else "a")]})
        elif changed := [key for key in one if key in two and one[key] != two[key]]:  # earlier records have fewer keys
            rows.append({"path": path, "a": one, "b": two, "changed": changed})
    return rows
