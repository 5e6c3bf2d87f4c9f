"""Difference of two experiments: knobs, config, weights, totals."""

from typing import Any

from registry.records.provenance import made_by
from registry.records.record import Snapshot

Difference = dict[str, Any]


def diff(a: Snapshot, b: Snapshot) -> Difference:
    """Returns the differences from `a` to `b`; lists are empty where the two are equal. "code" is filled in even if
    equal, and does not count as a difference.

    A config path of only one side has the value None on the other. Paths under a class that differs are omitted if the
    other side lacks them, because the difference of the class implies them.
    """
    return {
        "a": _title(a),
        "b": _title(b),
        "knobs": _knobs(a["knobs"], b["knobs"]),
        "config": _config(a["config"], b["config"]),
        "weights": _weights(a, b),
        "totals": {
            key: {"a": a["totals"][key], "b": b["totals"][key]}
            for key in a["totals"]
            if key in b["totals"] and a["totals"][key] != b["totals"][key]
        },
        "mesh": [] if a["mesh"] == b["mesh"] else [a["mesh"], b["mesh"]],
        "code": _code(a, b),
    }


def _code(a: Snapshot, b: Snapshot) -> Difference:
    """Returns the code of each side; empty if it is unknown for one of them."""
    made = {"a": made_by(a), "b": made_by(b)}
    return made if all(made.values()) else {}


def is_equal(difference: Difference) -> bool:
    """Returns whether nothing differs."""
    return not any(difference[key] for key in ("knobs", "config", "weights", "totals", "mesh"))


def _title(side: Snapshot) -> str:
    words = [side["experiment"], *(["--smoke"] if side["smoke"] else []), *(f"--set={o}" for o in side["overrides"])]
    return " ".join(words)


def _knobs(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    rows = []
    for name in [*a, *(name for name in b if name not in a)]:
        left, right = a.get(name, {}), b.get(name, {})
        if left.get("value") != right.get("value"):
            rows.append(
                {
                    "knob": name,
                    "a": left.get("value"),
                    "b": right.get("value"),
                    "owner_a": left.get("owner"),
                    "owner_b": right.get("owner"),
                }
            )
    return rows


def _config(a: dict[str, str], b: dict[str, str]) -> list[Difference]:
    changed = [path for path in [*a, *(path for path in b if path not in a)] if a.get(path) != b.get(path)]
    kept = []
    for path in changed:
        parents = [parent for parent in changed if path.startswith(parent + ".")]
        if not (parents and (path not in a or path not in b)):
            kept.append({"path": path, "a": a.get(path), "b": b.get(path)})
    return kept


def _weights(a: Snapshot, b: Snapshot) -> list[Difference]:
    left, right = ({row["path"]: row for row in side["weights"]} for side in (a, b))
    rows = []
    for path in [*left, *(path for path in right if path not in left)]:
        one, two = left.get(path), right.get(path)
        if one is None or two is None:
            rows.append({"path": path, "a": one, "b": two, "changed": ["only in " + ("b" if one is None else "a")]})
        elif one != two:
            rows.append({"path": path, "a": one, "b": two, "changed": [key for key in one if one[key] != two.get(key)]})
    return rows
