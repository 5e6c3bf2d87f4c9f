"""The first value of an update that is not finite: in the forward pass, the backward pass or the new weights."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from layers.auxiliary import PARTS, RowSummary
from runners.stacked_arrays import Layer, Shapes, StackedArrays, named
from tasks.step_summary import ArraySummary, UpdateSummary

LISTED = 8  # rows in a message
LAST_OUTPUTS = {"features": "the final norm", "logits": "the logits", "loss": "the loss at a position"}
# Parts of a block in the order of the backward pass.
BACKWARD = ("ffn_post_norm", "ffn", "ffn_norm", "mixer_post_norm", "mixer", "mixer_norm")
FINAL = ("head", "pointer", "final_norm")  # modules after the layers, in this order too


@dataclasses.dataclass(frozen=True)
class Summaries:
    """What is known of an update, as numpy arrays."""

    outputs: Mapping[str, RowSummary]  # by path; empty if the task does not report them
    gradient: Mapping[str, ArraySummary]
    update: UpdateSummary
    segments: np.ndarray | None = None  # numbers of segments (B, S), if rows hold several


class Output(NamedTuple):
    """The output of a part of the model."""

    name: str
    layer: int | None  # number of the layer, from 0
    largest: float  # largest absolute value that is finite
    first: np.ndarray  # first position that is not finite, by row; -1 for none


class Entry(NamedTuple):
    """The gradient or new value of a weight, in one layer if it is stacked."""

    path: str
    layer: int | None
    bad: int  # elements that are not finite
    largest: float

    def __str__(self) -> str:
        return self.path if self.layer is None else f"{self.path} of layer {self.layer}"


def find(step: int, shapes: Shapes, found: Summaries) -> str:
    """Returns a sentence, without its full stop, that names the first value that is not finite.

    Args:
      step: number of the update.
      shapes: shapes of the model's variables, by path.
      found: what is known of the update.
    """
    layers, update = len(StackedArrays(shapes).layers), found.update
    output = next((output for output in outputs(shapes, found.outputs) if (output.first >= 0).any()), None)
    if output is not None:
        where = "" if output.layer is None else f" of layer {output.layer} (of 0 to {layers - 1})"
        rows = _rows(output.first, found.segments)
        value = output.name if output.name.startswith("the loss") else f"the output of {output.name}"
        return f"The loss of step {step} is not finite: {value}{where} is the first that is not, in {rows}"
    if not np.isfinite(update.objective):
        return f"The loss of step {step} is not finite, although the outputs of all layers are"
    for what, of, norm in (("gradient", found.gradient, update.gradient_norm), ("new weights", update.weights, None)):
        entries = list(_entries(shapes, of))
        if bad := next((entry for entry in entries if entry.bad), None):
            ordered = "in the backward pass " if what == "gradient" else ""
            return (
                f"The {what} of step {step} {'is' if what == 'gradient' else 'are'} not finite, and the values before "
                f"are: {bad} is the first {ordered}with such elements ({bad.bad:,})"
            )
        is_overflow = not np.isfinite(norm) if norm is not None else update.bad_step == step
        if is_overflow and entries:
            most = max(entries, key=lambda entry: entry.largest)
            return (
                f"The norm of the {what} of step {step} overflows float32, although all elements are finite: the "
                f"largest is {most.largest:.3g}, of {most}"
            )
    return (
        f"Step {step} was not finite, and is finite if it is computed again from the last checkpoint: its devices or "
        f"programs do not repeat their results"
    )


def record(shapes: Shapes, found: Summaries) -> dict[str, Any]:
    """Returns all that is known of an update, for a JSON file; arguments as in `find`."""
    of_output = lambda output: {
        "output": output.name,
        "layer": output.layer,
        "largest": output.largest,
        "rows": {int(row): int(output.first[row]) for row in np.flatnonzero(output.first >= 0)},
    }
    of_entry = lambda entry: {
        "weight": entry.path,
        "layer": entry.layer,
        "non_finite": entry.bad,
        "largest": entry.largest,
    }
    return {
        "objective": float(found.update.objective),
        "gradient_norm": float(found.update.gradient_norm),
        "outputs": [of_output(output) for output in outputs(shapes, found.outputs)],
        "gradient": [of_entry(entry) for entry in _entries(shapes, found.gradient)],
        "new_weights": [of_entry(entry) for entry in _entries(shapes, found.update.weights)],
    }


def outputs(shapes: Shapes, summaries: Mapping[str, RowSummary]) -> list[Output]:
    """Returns the outputs of all parts of the model, in the order of the forward pass."""
    numbers, found = _numbers(shapes), []
    for path, summary in summaries.items():
        name, place = named(path)
        part = name.rpartition("/")[2]
        if place is None and part == "residual_bsm":
            continue  # the embedding again
        what = f"the loss term {path.removeprefix('losses/')}" if path.startswith("losses/") else _part(part)
        order = (*PARTS, "logits", "loss").index(part) if part in {*PARTS, "logits", "loss"} else len(PARTS) + 2
        for index, (first, largest) in enumerate(_by_layer(summary.first, summary.largest, place is not None)):
            number = None if place is None else numbers.get(Layer(place, index))
            after = place is None and part != "embedded"
            key = (path.startswith("losses/") or after, -1 if number is None else number, order)
            found.append((key, Output(what, number, float(largest.max()), first)))
    return [output for _, output in sorted(found, key=lambda pair: pair[0])]


def _part(name: str) -> str:
    return {**PARTS, **LAST_OUTPUTS}.get(name, name)


def _by_layer(first: Any, largest: Any, is_stacked: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return zip(first, largest, strict=True) if is_stacked else iter([(first.ravel(), largest.ravel())])


def _numbers(shapes: Shapes) -> dict[Layer, int]:
    """Returns the number of each layer in the model."""
    return {layer: number for number, layer in enumerate(StackedArrays(shapes).layers)}


def _entries(shapes: Shapes, summaries: Mapping[str, ArraySummary]) -> list[Entry]:
    """Returns the summaries of all weights by layer, in the order of the backward pass."""
    numbers, found = _numbers(shapes), []
    for path, summary in summaries.items():
        name, place = named(path)
        within = name.partition("/block/")[2].split("/")[0]
        for index, (bad, largest) in enumerate(zip(summary.bad.ravel(), summary.largest.ravel(), strict=True)):
            number = None if place is None else numbers.get(Layer(place, index))
            if number is not None:
                key = (1, -number, BACKWARD.index(within) if within in BACKWARD else len(BACKWARD))
            else:
                module = path.split("/")[1]
                key = (0, FINAL.index(module), 0) if module in FINAL else (2, 0, 0)
            found.append((key, Entry(path, number, int(bad), float(largest))))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _rows(first: np.ndarray, segments: np.ndarray | None) -> str:
    """Returns `rows 5 and 9 of the batch`, and the first position of the first row."""
    rows = [int(row) for row in np.flatnonzero(first >= 0)]
    shown = [str(row) for row in rows[:LISTED]]
    if len(rows) > LISTED:
        shown.append(f"{len(rows) - LISTED} more")
    names = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    position = int(first[rows[0]])
    document = "" if segments is None else f" (segment {int(segments[rows[0], position])} of the row)"
    every = f"all {len(first)} rows" if len(rows) == len(first) > 1 else f"row{'s' * (len(rows) > 1)} {names}"
    return f"{every} of the batch, from position {position} of row {rows[0]}{document}"
