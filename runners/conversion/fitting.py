"""Checks of a weight file against an experiment: every weight has its tensors, and every tensor its weight."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment
from registry.records.snapshot import flat_config
from runners.conversion.foreign_files import ForeignWeights
from runners.conversion.name_maps import BIASES, FORMATS, KNOBS, SHARED_SETTINGS, SIZES, name_map
from runners.conversion.renaming import Layout, Slot, name_of
from runners.conversion.rules import NameMap, Rule
from runners.conversion.tensors import FLOATS, Tensor

Tensors = Mapping[str, Tensor]


def fitted(layout: Layout, file: ForeignWeights, source: str, knobs: Collection[str]) -> dict[str, Tensor]:
    """Returns the tensors of a file by plain key, each for a weight of the layout and vice versa.

    Args:
      layout: the slots of the experiment's weights in the file's format.
      file: content of the file.
      source: name of the file in errors.
      knobs: names of the experiment's knobs, which errors may mention.

    Raises:
      UsageError: a row without a key, a key without a row, or a shape that differs, with the knob to set if
        any; or values that are not floating-point numbers of 16 bits or more.
    """
    names = layout.names
    found = _plain_tensors(names, file.arrays)
    _check_format(layout, file.arrays, source)
    _check_layers(layout, found, source)
    _check_rows(layout, 2)
    _check_keys(layout, found, source, eight_bit=file.is_eight_bit)
    for slot in layout.slots:
        if found[slot.key].shape != slot.shape:
            raise _misfit(slot, found[slot.key].shape, source, knobs)
        if found[slot.key].dtype not in FLOATS:
            raise UsageError(
                f"{slot.key} in '{source}' is stored as {found[slot.key].dtype}, which is not supported. "
                f"Convert the weights to bfloat16 or float32."
            )
    return found


def require_exportable(layout: Layout) -> None:
    """Raises a UsageError if the format has no key for a row, or requires a key that no row fills."""
    _check_rows(layout, None)
    names = layout.names
    filled = {slot.rule for slot in layout.slots}
    for rule in names.rules if names.complete else ():
        if rule not in filled and rule.theirs != names.head:
            raise UsageError(f"{names.name} files require {rule.theirs}, but the experiment has no {rule.ours}.")


def sizes_in(names: NameMap, tensors: Tensors) -> dict[str, Any]:
    """Returns the knobs that the tensors of a file determine: sizes, layers, biases, tied or untied head."""
    found = _plain_tensors(names, tensors)
    knobs: dict[str, Any] = {}
    for rule in names.rules:
        tensor, axes = found.get(rule.theirs.format(i=0, e=0)), rule.axis_groups
        if tensor is not None and tensor.ndim == len(axes) and rule.part[1] == 1:
            knobs |= {SIZES[axis]: size for axis, size in zip(axes, tensor.shape, strict=True) if axis in SIZES}
    if layers := names.count_layers(found):
        knobs["NUM_LAYERS"] = layers
    if found:
        rows = " ".join(rule.ours for rule in names.rules if rule.theirs.format(i=0, e=0) in found)
        knobs["BIASES"] = tuple(place for row, place in BIASES.items() if f"/{row}_" in rows)
    if names.head in found and names.embedding in found:
        knobs["TIE_EMBEDDINGS"] = _equal(found[names.head], found[names.embedding])
    return knobs


def _equal(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same values; one of them is in memory at a time."""
    return one.shape == other.shape and _digest(one) == _digest(other)


def _digest(tensor: Tensor) -> bytes:
    return hashlib.sha256(tensor.read().astype(np.float32).tobytes()).digest()


def _plain_tensors(names: NameMap, tensors: Tensors) -> dict[str, Tensor]:
    """Returns the weights of a file with the keys and orientation of the rules, without buffers."""
    plain = {names.plain(key): value for key, value in tensors.items()}
    return {key: names.turned(key, value) for key, value in plain.items() if not names.is_buffer(key)}


def notes(names: NameMap, experiment: Experiment) -> Iterator[str]:
    """Yields notes on settings that differ from models of such files and that weights do not determine."""
    config = flat_config(experiment)
    if not names.activation:
        return
    block = "task.model.stack.block"
    learned = config.get("task.model.positions") == "layers.positions.embeddings.LearnedPositions"
    alone = config.get(f"{block}.ffn_norm") == "None"
    wanted = [
        *SHARED_SETTINGS,
        (f"ACTIVATION={names.activation}", f"{block}.ffn.activation", f"'{names.activation}'"),
        (f"RESIDUAL={'parallel_shared_norm' if alone else 'sequential'}", f"{block}.parallel", str(alone)),
        (
            f"POSITIONS={'learned' if learned else 'alibi'}",
            f"{block}.mixer.relative_bias",
            "None" if learned else "layers.positions.alibi.Alibi",
        ),
    ]
    for setting, path, value in wanted:
        if config.get(path) != value:
            yield (
                f"Note: models of {names.name} files have {path} = {value} (got {config.get(path, 'none')}), so "
                f"outputs differ. Use --set={setting} to match."
            )


def _check_rows(layout: Layout, column: int | None) -> None:
    """Raises a UsageError for the first row that has no key; `column` selects the setting of KNOBS to advise."""
    filled = {slot.row.path for slot in layout.slots}
    for path, row in layout.rows.items():
        if path not in filled:
            hint = "" if column is None else _knob(layout.names, name_of(row), column)
            raise UsageError(f"{layout.names.name} files have no key for {name_of(row)} of the experiment.{hint}")


def _knob(names: NameMap, row: str, column: int) -> str:
    """Returns a sentence with the setting that adds a row (1) or removes it (2), if the format has a knob for it."""
    for knob in KNOBS:
        if knob[0] in row and names.activation:
            return f" Use --set={knob[column]}."
    return ""


def _check_format(layout: Layout, tensors: Tensors, source: str) -> None:
    names, rows = layout.names, [name_of(row) for row in layout.rows.values()]
    known = {name: name_map(name, rows).count_known(tensors) for name in FORMATS}
    best = max(known, key=lambda name: (known[name], name == names.name))
    if known[best] > known[names.name]:
        raise UsageError(f"'{source}' looks like a {best} file, not like {names.name}. Use --format={best}.")
    if not known[best]:
        shown = ", ".join(sorted(tensors)[:3]) or "no keys"
        raise UsageError(f"'{source}' has no key of {names.name} files (got {shown}).")


def _check_layers(layout: Layout, found: Tensors, source: str) -> None:
    theirs, ours = layout.names.count_layers(found), len(layout.layers)
    if theirs is not None and ours != theirs:
        raise UsageError(
            f"'{source}' has {theirs} layers, but the experiment has {ours}. Use --set=NUM_LAYERS={theirs}."
        )


def _check_keys(layout: Layout, found: Tensors, source: str, *, eight_bit: bool) -> None:
    """Raises a UsageError for the first row without its keys, or key of the file without a row."""
    names, expected = layout.names, set()
    for slot in layout.slots:
        expected.add(slot.key)
        if slot.key not in found:
            raise UsageError(f"'{source}' has no {slot.key} for {slot.rule.ours}.{_knob(names, slot.rule.ours, 2)}")
    without_row = {
        rule.theirs.format(i=number, e=0): rule
        for rule in names.rules
        for number in range(len(layout.layers) if "{i}" in rule.theirs else 1)
    }
    for key in [key for key in without_row if key not in expected and key in found]:
        rule = without_row[key]
        expected.add(key)
        if not _may_go(names, key, rule, found, source, eight_bit=eight_bit):
            raise UsageError(
                f"'{source}' has {key}, but the experiment has no {rule.ours}.{_knob(names, rule.ours, 1)}"
            )
    for key in found:
        if "adapter" in key:
            raise UsageError(f"'{source}' has adapters ({key}), which are not supported. Use a file without them.")
        if key not in expected:
            raise UsageError(
                f"'{source}' has the key {key}, which is unknown in {names.name} files. {did_you_mean(key, expected)}"
            )


def _may_go(names: NameMap, key: str, rule: Rule, found: Tensors, source: str, *, eight_bit: bool) -> bool:
    """Returns whether a key may be dropped without effect: a bias of zeros, or a head equal to the embedding."""
    if key != names.head:
        return "_bias_" in rule.ours and not found[key].read().any()
    if eight_bit or _equal(found[key], found[names.embedding]):
        return True
    raise UsageError(f"'{source}' has a {key} that differs from its {names.embedding}. Use --set=TIE_EMBEDDINGS=false.")


def _misfit(slot: Slot, theirs: tuple[int, ...], source: str, knobs: Collection[str]) -> UsageError:
    """Returns the error for a shape that differs, with the knobs to set."""
    axes, ours, fitting = slot.rule.axis_groups, slot.shape, list[str]()
    if len(theirs) == len(ours) == len(axes):
        sizes = zip(axes, theirs, ours, strict=True)
        fitting = [f"--set={SIZES[axis]}={size}" for axis, size, here in sizes if size != here and axis in SIZES]
        fitting = [setting for setting in fitting if setting[6:].partition("=")[0] in knobs]
    show = lambda shape: "x".join(map(str, shape)) or "one number"
    hint = f" Use {' '.join(fitting)}." if fitting else ""
    return UsageError(
        f"{slot.key} is {show(theirs)} in '{source}', but {show(ours)} in the experiment, for {slot.rule.ours}.{hint}"
    )
