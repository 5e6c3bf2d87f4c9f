"""Plans that --mode=plan wrote, as rows for the pages of their experiments."""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layers.errors import UsageError, first_line
from registry.records.quantities import hardware_text, mesh_text, peak_parts, size
from tasks.storage.json_values import parsed, require_type

FILE = "plan.json"
PARTS = ("weights", "gradients", "optimizer", "activations and other")  # in the order of the page


def read_plans(patterns: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns the plans in files or folders that match the patterns, as rows by the name of their experiment.

    Raises:
      UsageError: a pattern matches no plan, or a file is not a plan.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for pattern in patterns:
        places = (Path(place) for place in sorted(glob.glob(pattern)))
        files = [file for file in (place / FILE if place.is_dir() else place for place in places) if file.is_file()]
        files = [file for file in files if file.suffix == ".json"]
        if not files:
            raise UsageError(f"--plans matches no plan (got '{pattern}'). Name folders that --mode=plan wrote.")
        for file in files:
            name, row = _read(file)
            found.setdefault(name, []).append(row)
    return found


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    """Returns the name of the experiment of a plan, and its row."""
    try:
        plan = parsed(file.read_bytes())
        if not isinstance(plan, dict) or "memory_bytes_per_device" not in plan:
            raise ValueError("it has no memory_bytes_per_device")
        require_type(plan.get("experiment"), str, "its experiment")
        return plan["experiment"], plan_row(plan)
    except KeyError as error:
        raise UsageError(f"'{file}' cannot be read as a plan: it has no {error}. Remove it from --plans.") from error
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"'{file}' cannot be read as a plan: {first_line(error)}. Remove it from --plans.") from error


def plan_row(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a plan as texts: machine, fit, memory per device by kind, figures, buffers at the peak, findings."""
    sets = [*("--smoke",) * bool(plan["smoke"]), *(f"--set={each}" for each in plan["overrides"])]
    machine = f"{plan['devices']:,} devices ({hardware_text(plan)}), {mesh_text(plan['mesh'])}"
    title = f"{plan['step'].capitalize()} step on {machine}"
    verdict = {True: "yes", False: "no", None: "unknown"}[plan["fits"]]
    return {
        "title": " ".join([title, *sets]),
        "fit": _fit(plan),
        "verdict": verdict,
        "memory": _memory(plan),
        "figures": _figures(plan),
        "buffers": [
            (one["what"], size(one["bytes"]), one["row"] or one["layer"]) for one in plan.get("peak_buffers", ())
        ],
        "findings": [one["text"] for one in plan.get("findings", ())],
    }


def _fit(plan: Mapping[str, Any]) -> str:
    capacity, peak = _capacity(plan), plan["memory_bytes_per_device"].get("peak")
    amounts = f": {size(peak)} of {size(capacity)}" if peak is not None and capacity is not None else ""
    if plan["fits"] is None:
        return f"Needs {size(peak)} per device." if peak is not None else "The memory is unknown."
    return f"{'Fits' if plan['fits'] else 'Does not fit'}{amounts}."


def _memory(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the parts of the peak, with their shares of it (or of the capacity, if larger) in percent."""
    found = peak_parts(plan["memory_bytes_per_device"])
    parts = {name: found[name] for name in PARTS if name in found}
    most = max(sum(parts.values()), _capacity(plan) or 0) or 1
    return [{"kind": name, "size": size(of), "share": round(100 * of / most, 2)} for name, of in parts.items()]


def _figures(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    figures = [
        ("tokens per step", f"{plan['tokens_per_step']:,}"),
        ("FLOPs per step", f"{plan['flops_per_step']:.4g}"),
        ("FLOPs per token", f"{plan['flops_per_token']:.4g}"),
    ]
    if "roofline" in plan:
        about = "about " if plan["roofline_is_estimate"] else "at least "
        most = "about " if plan["roofline_is_estimate"] else "at most "
        figures += [
            ("step time", f"{about}{plan['roofline_step_seconds']:.3g} s"),
            ("tokens per second", f"{most}{plan['roofline_tokens_per_second']:,.0f}"),
            ("MFU", f"{most}{plan['roofline_mfu']:.1%}"),
        ]
    sent = sum(collective["bytes"] for collective in plan["collectives"])
    return [*figures, ("sent per device and step", size(sent))]


def _capacity(plan: Mapping[str, Any]) -> int | None:
    """Returns the bytes per device that a program can use; plans of earlier versions state the chip's memory alone."""
    return plan.get("capacity_bytes_per_device", plan["hbm_bytes_per_device"])
