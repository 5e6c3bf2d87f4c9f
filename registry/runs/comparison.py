"""Comparison of runs: what differs in their knobs, config, weights, data, code and versions, and their results."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry.records.diff import differing, differing_config
from registry.records.record import checkout_text, made_by
from registry.runs.metrics import AXES, TRAIN, VALIDATION, Curve, curve, higher_is_better
from registry.runs.run import Run
from registry.runs.table import groups, per_setting, statistics

Comparison = dict[str, Any]
METRICS = ("bits_per_byte", "loss")  # compared unless --metric names another: the first that all runs have
SEED = "SEED"
CONFIDENCE = 0.95  # of the intervals over seeds
DIFFERENCES = ("entry", "knobs", "config", "weights", "totals", "mesh")  # what makes experiments different


def compare(runs: Sequence[Run], metric: str | None = None) -> Comparison:
    """Returns what differs among runs, each as `{name: [value of each run]}`, and their results.

    Results have a row for each group of runs that differ in SEED alone: the last and the best value, and the value at
    the largest number of steps, tokens, FLOPs and seconds that all runs have reached, linear between two measurements.
    Runs of one seed count as one sample, their mean. `best` is None if the direction of the metric is unknown.

    Args:
      runs: two or more.
      metric: a scalar of validation, of evaluation tasks (TASK/METRIC) or, if no run has validation, of training.

    Raises:
      UsageError: a record cannot be read, or not all runs have the metric.
    """
    sides = [run.snapshot for run in runs]
    return {
        "runs": [{"run": run.name, "state": run.state, "step": run.summary.step} for run in runs],
        "entry": differing([{"entry": run.entry} for run in runs]),
        "knobs": differing([run.knobs for run in runs]),
        "config": differing_config([side["config"] for side in sides]),
        "weights": differing([_weights(side) for side in sides]),
        "totals": differing([side["totals"] for side in sides]),
        "mesh": differing([side["mesh"] for side in sides]),
        "data": differing([_data(side) for side in sides]),
        "code": differing([_code(side) for side in sides]),
        "devices": differing([_devices(side) for side in sides]),
        "versions": differing([(made_by(side) or {}).get("versions", {}) for side in sides]),
        "results": results(runs, metric),
    }


def is_equal(comparison: Comparison) -> bool:
    """Returns whether the runs are of one experiment with equal knobs, config, weights and mesh."""
    return not any(comparison[part] for part in DIFFERENCES)


def _weights(side: Mapping[str, Any]) -> dict[str, str]:
    """Returns what each weight is, in one text."""
    shown = lambda row: f"{'x'.join(map(str, row['shape']))} {row['dtype']} {row['spec']}"
    return {row["path"].removeprefix("params/"): shown(row) for row in side["weights"]}


def _data(side: Mapping[str, Any]) -> dict[str, str]:
    """Returns description and fingerprint of each input of the last start, and of the vocabulary."""
    starts = side.get("starts") or [{}]
    inputs = dict(starts[-1].get("data", {}))
    if side.get("vocabulary"):
        inputs["vocabulary"] = side["vocabulary"]
    digest = lambda of: f" (fingerprint {of['fingerprint'][:12]})" if of.get("fingerprint") else ""
    return {name: f"{of['is']}{digest(of)}" for name, of in inputs.items()}


def _devices(side: Mapping[str, Any]) -> dict[str, str]:
    """Returns the devices of the last start, in one text."""
    of = (side.get("starts") or [{}])[-1].get("devices")
    return {} if of is None else {"devices": f"{of['count']} x {of['kind']}, processes: {of['processes']}"}


def _code(side: Mapping[str, Any]) -> dict[str, str]:
    """Returns the checkout of the last start, by package, with its digest."""
    return {name: checkout_text(of) for name, of in (made_by(side) or {}).get("code", {}).items()}


def results(runs: Sequence[Run], metric: str | None) -> Comparison:
    """Returns the results of groups of runs (`compare`); empty if no metric is measured in all runs.

    Raises:
      UsageError: `metric` is not measured in all runs.
    """
    found = _measured(runs, metric)
    if found is None:
        return {}
    name, split = found
    higher = higher_is_better(name)
    curves = {axis: {run.name: curve(run.lines, name, split=split, axis=axis) for run in runs} for axis in AXES}
    rows, by = [], [SEED] if any(SEED in run.knobs for run in runs) else []
    for group in groups(runs, by):
        steps = [curves["step"][run.name] for run in group]
        best = [] if higher is None else [each.best(higher=higher)[1] for each in steps]
        rows.append(
            {
                "runs": [run.name for run in group],
                "final": interval(per_setting(group, [each.y[-1] for each in steps], by)),
                "best": interval(per_setting(group, best, by)) if best else None,
                "at": {axis: _at(runs, group, of) for axis, of in curves.items()},
            }
        )
    equal = {axis: _limit(of.values()) for axis, of in curves.items()}
    axes = () if higher is None else [axis for axis, limit in equal.items() if limit is not None]
    verdicts = {axis: verdict(rows, axis, higher=bool(higher)) for axis in axes}
    return {
        "metric": name,
        "split": split,
        "higher_is_better": higher,
        "equal": equal,
        "rows": rows,
        "verdicts": {axis: found for axis, found in verdicts.items() if found is not None},
    }


def _measured(runs: Sequence[Run], metric: str | None) -> tuple[str, str] | None:
    """Returns a scalar that all runs have, and its split."""
    have: list[set[tuple[str, str]]] = []
    for run in runs:
        scalars = ((name, line["split"], value) for line in run.lines for name, value in line.items())
        have.append({(name, split) for name, split, value in scalars if _is_scalar(name, value)})
    common = set.intersection(*have)
    for name in (metric,) if metric else METRICS:
        for split in (VALIDATION, "evals", TRAIN):
            if (name, split) in common:
                return name, split
    if metric is None:
        return None
    names = {name for name, split in common if split != TRAIN}
    lacking = next((run.name for run, of in zip(runs, have, strict=True) if metric not in {n for n, _ in of}), "")
    raise UsageError(f"--metric={metric} is not measured in '{lacking}'. {did_you_mean(metric, names)}")


def _is_scalar(name: str, value: Any) -> bool:
    return name not in ("step", "seconds") and isinstance(value, int | float)


def _limit(curves: Collection[Curve]) -> float | None:
    """Returns the largest place that all curves reach; None if one is empty or they have none in common."""
    if not all(each.x for each in curves):
        return None
    end = min(each.x[-1] for each in curves)
    return None if end < max(each.x[0] for each in curves) else end


def _at(runs: Sequence[Run], group: Sequence[Run], curves: Mapping[str, Curve]) -> Comparison | None:
    """Returns the values of a group where all runs have been; None if that is nowhere."""
    limit = _limit([curves[run.name] for run in runs])
    values = [] if limit is None else [curves[run.name].at(limit) for run in group]
    return interval(per_setting(group, values, [SEED])) if values else None


def interval(values: Sequence[float]) -> Comparison:
    """Returns mean, deviation, n and half the width of the mean's 95% confidence interval by Student's t.

    Deviation and half width are None for one value. The interval supposes values of a normal distribution.
    """
    found = statistics(values)
    if found["deviation"] is None:
        return {**found, "half_width": None}
    error = found["deviation"] / math.sqrt(found["n"])
    return {**found, "half_width": _quantile(found["n"] - 1) * error}


def _quantile(freedom: float) -> float:
    """Returns the factor of the standard error for a confidence interval by Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def verdict(rows: Sequence[Comparison], axis: str, *, higher: bool) -> Comparison | None:
    """Returns the best and the second row on an axis; None if fewer than two have a value.

    Returns:
      `best` and `second` (their runs), `share` (of the second's mean, by which the best differs), and `is_certain`:
      whether the 95% interval of the difference of the means excludes 0 (Welch's t-test); None without several seeds
      that differ.
    """
    have = [row for row in rows if row["at"][axis] is not None]
    ranked = sorted(have, key=lambda row: (-1 if higher else 1) * row["at"][axis]["mean"])
    if len(ranked) < 2:
        return None
    best, second = (row["at"][axis] for row in ranked[:2])
    gap = abs(second["mean"] - best["mean"])
    share = gap / abs(second["mean"]) if second["mean"] else 0.0
    found = {"best": ranked[0]["runs"], "second": ranked[1]["runs"], "share": share, "is_certain": None}
    if best["deviation"] is None or second["deviation"] is None:
        return found
    terms = [(side["deviation"] ** 2 / side["n"], side["n"]) for side in (best, second)]
    variance = sum(term for term, _ in terms)
    if not variance:
        return found
    freedom = variance**2 / sum(term**2 / (n - 1) for term, n in terms)  # Welch 1947
    return {**found, "is_certain": gap > _quantile(freedom) * math.sqrt(variance)}
