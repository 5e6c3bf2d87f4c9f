"""Weight conversion: arrays in the names and shapes of other frameworks to rows of a weight table, and back."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from einops import rearrange

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment
from registry.records.snapshot import flat_config
from runners.conversion.foreign_files import Arrays, ForeignWeights
from runners.conversion.name_maps import BIASES, FORMATS, KNOBS, SHARED_SETTINGS, SIZES, NameMap, Rule, name_map
from tasks.weight_table import WeightRow

EMBEDDING, HEAD = "wte.weight", "lm_head.weight"


def name_of(row: WeightRow) -> str:
    """Returns the row's name as weight tables print it."""
    return row.path.removeprefix("params/")


def to_ours(
    names: NameMap, rows: Iterable[WeightRow], file: ForeignWeights, source: str, knobs: Collection[str]
) -> Arrays:
    """Converts the arrays of a file to the experiment's weights, by the rows' names.

    Args:
      names: name map of the file's format.
      rows: the experiment's weight table.
      file: content of the file.
      source: name of the file in errors.
      knobs: names of the experiment's knobs, which errors may mention.

    Raises:
      UsageError: a row without a key, a key without a row, or a shape that differs; with the knob to set, if any.
    """
    table = {name_of(row): row for row in rows}
    found = _plain_arrays(names, file.arrays)
    _check_format(names, table, file.arrays, source)
    _check_layers(names, table, found, source)
    rules = {name: _rule_of(names, name, _knob(names, name, 2)) for name in table}
    _check_keys(names, table, found, source, eight_bit=file.is_eight_bit)
    return {name: _filled(row, rules[name], found, source, knobs) for name, row in table.items()}


def to_theirs(names: NameMap, rows: Iterable[WeightRow], arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Converts the experiment's weights, by the rows' names, to the arrays of a file.

    Raises:
      UsageError: the format has no key for a row, or requires a key that no row fills.
    """
    table = {name_of(row): row for row in rows}
    for name in table:
        _rule_of(names, name, "")  # without a hint: a trained model's knobs cannot be changed
    pieces: dict[str, list[np.ndarray]] = {}
    for rule in names.rules:
        row = table.get(rule.ours)
        if row is None:
            if names.complete and rule.theirs != HEAD:
                raise UsageError(f"{names.name} files require {rule.theirs}, but the experiment has no {rule.ours}.")
            continue
        for key, piece in _cut(rule, row, arrays[rule.ours]):
            pieces.setdefault(key, []).append(piece)  # parts of one key are in order in the rules
    for key, parts in pieces.items():
        if len({part.shape for part in parts}) > 1:
            sizes = ", ".join("x".join(map(str, part.shape)) for part in parts)
            raise UsageError(f"Parts of {key} must have equal shapes in {names.name} files (got {sizes}).")
    theirs = {key: _joined(parts) for key, parts in pieces.items()}
    if names.writes_head:
        theirs.setdefault(HEAD, theirs[EMBEDDING])
    return {
        key if key == HEAD else names.prefix + key: np.ascontiguousarray(names.turned(key, value))
        for key, value in theirs.items()
    }


def sizes_in(names: NameMap, arrays: Arrays) -> dict[str, Any]:
    """Returns the knobs that the arrays of a file determine: sizes, layers, biases, tied or untied head."""
    found = _plain_arrays(names, arrays)
    knobs: dict[str, Any] = {}
    for rule in names.rules:
        array, axes = found.get(rule.theirs.format(i=0)), _axes(rule)
        if array is not None and array.ndim == len(axes) and rule.part[1] == 1:
            knobs |= {SIZES[axis]: size for axis, size in zip(axes, array.shape, strict=True) if axis in SIZES}
    if layers := names.count_layers(found):
        knobs["NUM_LAYERS"] = layers
    if found:
        rows = " ".join(rule.ours for rule in names.rules if rule.theirs.format(i=0) in found)
        knobs["BIASES"] = tuple(place for row, place in BIASES.items() if f"/{row}_" in rows)
    if HEAD in found and EMBEDDING in found:
        knobs["TIE_EMBEDDINGS"] = np.array_equal(found[HEAD], found[EMBEDDING])
    return knobs


def _plain_arrays(names: NameMap, arrays: Arrays) -> Arrays:
    """Returns the weights of a file with the keys and orientation of the rules, without buffers."""
    plain = {names.plain(key): value for key, value in arrays.items()}
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


def _rule_of(names: NameMap, row: str, hint: str) -> Rule:
    for rule in names.rules:
        if rule.ours == row:
            return rule
    raise UsageError(f"{names.name} files have no key for {row} of the experiment.{hint}")


def _knob(names: NameMap, row: str, column: int) -> str:
    """Returns a sentence with the setting that adds a row (1) or removes it (2), if the format has a knob for it."""
    for knob in KNOBS:
        if knob[0] in row and names.activation:
            return f" Use --set={knob[column]}."
    return ""


def _letters(rule: Rule) -> str:
    return rule.ours.rpartition("_")[2]


def _keys(rule: Rule, row: WeightRow) -> list[str]:
    """Returns the keys of a rule in a file, one per layer of the row."""
    return [rule.theirs.format(i=i) for i in range(row.shape[0])] if "{i}" in rule.theirs else [rule.theirs]


def _their_shape(rule: Rule, row: WeightRow) -> tuple[int, ...]:
    if rule.axes is None:
        return row.shape
    sizes = dict(zip(_letters(rule), row.used, strict=True))
    shape = [math.prod(sizes[letter] for letter in axis if letter.isalpha()) for axis in _axes(rule)]
    return (*shape[:-1], shape[-1] * rule.part[1])


def _axes(rule: Rule) -> list[str]:
    return re.findall(r"\([^)]*\)|\w", rule.axes or "")


def _check_format(names: NameMap, table: Mapping[str, WeightRow], arrays: Arrays, source: str) -> None:
    known = {name: name_map(name, table).count_known(arrays) for name in FORMATS}
    best = max(known, key=lambda name: (known[name], name == names.name))
    if known[best] > known[names.name]:
        raise UsageError(f"'{source}' looks like a {best} file, not like {names.name}. Use --format={best}.")
    if not known[best]:
        shown = ", ".join(sorted(arrays)[:3]) or "no keys"
        raise UsageError(f"'{source}' has no key of {names.name} files (got {shown}).")


def _check_layers(names: NameMap, table: Mapping[str, WeightRow], found: Arrays, source: str) -> None:
    theirs = names.count_layers(found)
    ours = {table[rule.ours].shape[0] for rule in names.rules if "{i}" in rule.theirs and rule.ours in table}
    if theirs is not None and ours and ours != {theirs}:
        raise UsageError(
            f"'{source}' has {theirs} layers, but the experiment has {ours.pop()}. Use --set=NUM_LAYERS={theirs}."
        )


def _check_keys(names: NameMap, table: Mapping[str, WeightRow], found: Arrays, source: str, *, eight_bit: bool) -> None:
    """Raises a UsageError for the first key of the file without a row, or row without its keys."""
    layers = names.count_layers(found) or 0
    expected = set()
    for rule in names.rules:
        row = table.get(rule.ours)
        for key in [rule.theirs.format(i=i) for i in range(layers)] if "{i}" in rule.theirs else [rule.theirs]:
            expected.add(key)
            if row is not None and key not in found:
                raise UsageError(f"'{source}' has no {key} for {rule.ours}.{_knob(names, rule.ours, 2)}")
            if row is None and key in found and not _may_go(key, rule, found, source, eight_bit=eight_bit):
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


def _may_go(key: str, rule: Rule, found: Arrays, source: str, *, eight_bit: bool) -> bool:
    """Returns whether a key may be dropped without effect: a bias of zeros, or a head equal to the embedding."""
    if key != HEAD:
        return "_bias_" in rule.ours and not found[key].any()
    if eight_bit or np.array_equal(found[key], found[EMBEDDING]):
        return True
    raise UsageError(f"'{source}' has a {HEAD} that differs from its {EMBEDDING}. Use --set=TIE_EMBEDDINGS=false.")


def _filled(row: WeightRow, rule: Rule, found: Arrays, source: str, knobs: Collection[str]) -> np.ndarray:
    """Returns the values of a row, padded with zeros."""
    shape = _their_shape(rule, row)
    for key in _keys(rule, row):
        if found[key].shape != shape:
            raise _misfit(key, rule, found[key].shape, shape, source, knobs)
    if rule.axes is None:
        return found[rule.theirs].astype(row.dtype)
    values = np.zeros(row.shape, row.dtype)
    letters = _letters(rule)
    index, parts = rule.part
    for layer, key in enumerate(_keys(rule, row)):
        part = np.split(found[key], parts, axis=-1)[index]
        ours = rearrange(part, f"{rule.axes} -> {' '.join(letters)}", **dict(zip(letters, row.used, strict=True)))
        used = tuple(slice(size) for size in row.used)
        values[(layer, *used) if "{i}" in rule.theirs else used] = ours
    return values


def _cut(rule: Rule, row: WeightRow, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the foreign keys and arrays of a row, without padding."""
    if rule.axes is None:
        yield rule.theirs, values
        return
    used = tuple(slice(size) for size in row.used)
    for layer, key in enumerate(_keys(rule, row)):
        ours = values[(layer, *used) if "{i}" in rule.theirs else used]
        yield key, rearrange(ours, f"{' '.join(_letters(rule))} -> {rule.axes}")


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenates parts along the last dimension into a C-contiguous array."""
    return np.array(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1), order="C")


def _misfit(
    key: str, rule: Rule, theirs: tuple[int, ...], ours: tuple[int, ...], source: str, knobs: Collection[str]
) -> UsageError:
    """Returns the error for a shape that differs, with the knobs to set."""
    axes, fitting = _axes(rule), list[str]()
    if len(theirs) == len(ours) == len(axes):
        sizes = zip(axes, theirs, ours, strict=True)
        fitting = [f"--set={SIZES[axis]}={size}" for axis, size, here in sizes if size != here and axis in SIZES]
        fitting = [setting for setting in fitting if setting[6:].partition("=")[0] in knobs]
    show = lambda shape: "x".join(map(str, shape)) or "one number"
    hint = f" Use {' '.join(fitting)}." if fitting else ""
    return UsageError(
        f"{key} is {show(theirs)} in '{source}', but {show(ours)} in the experiment, for {rule.ours}.{hint}"
    )
