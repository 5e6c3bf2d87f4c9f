"""Verbs of the registry tool that inspect the registered experiments."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from layers.errors import UsageError, first_line
from registry import index
from registry.tool import listing, render
from registry.tool.requests import names, printed
from registry.tool.totals import TotalsByName

# Everything that needs jax is imported inside the verb that uses it, so that `list` prints immediately.

SHOWN_ERRORS = 5  # printed errors of experiments that `list` cannot show
SMALL_DEVICES = 8  # onto which `check --smoke` folds meshes, because small experiments run on any number of devices
TOTALS = {"params": "parameters"}  # a short name in --where
FIGURES = (*TOTALS, "parameters", "bytes", "bytes_per_device", "gradient_bytes_per_device")
FIGURES += ("optimizer_bytes_per_device", "devices")  # names in --where
MESH = ("MESH_AXES", "DEVICE_MESH_SHAPE")  # the knobs that determine a mesh


def _resolve(options: argparse.Namespace, name: str, overrides: Sequence[str] | None = None) -> Any:
    from registry.resolve import resolve

    chosen = options.set if overrides is None else overrides
    return resolve(name, chosen, smoke=options.smoke, imports=options.imports)


def _keys(options: argparse.Namespace) -> list[str]:
    """Returns the names of all entries, including imported modules'."""
    if options.imports:
        from registry.resolve import load

        for module in options.imports:
            load(module)
    return _known_keys(options)


def _known_keys(options: argparse.Namespace) -> list[str]:
    """Returns the names of all entries, and of those that imported modules have registered so far."""
    if options.imports:
        from registry.experiment import REGISTRY

        return sorted({*index.entries(), *REGISTRY})
    return sorted(index.entries())


def entries(options: argparse.Namespace) -> int:
    """Lists experiments, or those whose name matches; --where filters by size."""
    pattern, keys = names(options, 0, 1, "at most one pattern"), _keys(options)
    if pattern:
        keys = listing.matching(keys, pattern[0])
    is_registered = not (options.set or options.smoke)
    totals = TotalsByName(lambda name: _weights_of(_resolve(options, name))["totals"], is_registered=is_registered)
    rows = [listing.entry(key, totals.known(key)) for key in keys]
    errors: list[UsageError] = []
    if not is_registered:
        rows = list(_each(lambda row: _changed(options, row, totals), rows, errors))
    if options.where:
        rows = list(_each(lambda row: _where(options.where, row, totals), rows, errors))
    if errors and not rows:
        raise errors[0]
    printed(options, rows, render.entries)
    for error in errors[:SHOWN_ERRORS]:
        print(f"registry: {error}", file=sys.stderr)
    if len(errors) > SHOWN_ERRORS:
        print(f"registry: {len(errors) - SHOWN_ERRORS} more experiments have errors.", file=sys.stderr)
    return 2 if errors else 0 if rows else 1


def _each(
    made: Callable[[listing.Row], listing.Row | None], rows: Sequence[listing.Row], errors: list[UsageError]
) -> Iterator[listing.Row]:
    """Yields `made(row)` for each row, without None; errors of single experiments are appended to `errors`."""
    for row in _tracked(rows, "Reading"):
        try:
            if (found := made(row)) is not None:
                yield found
        except UsageError as error:
            errors.append(error)


def _where(condition: str, row: listing.Row, totals: TotalsByName) -> listing.Row | None:
    """Returns the row with its figures if the condition holds for it; None otherwise."""
    from registry.records.conditions import holds

    name = row["name"]
    value = lambda figure: row["devices"] if figure == "devices" else totals.of(name)[TOTALS.get(figure) or figure]
    if not holds(condition, value, FIGURES, example="params>1e9 and devices<=8"):
        return None
    return listing.with_figures(row, row["mesh"], totals.known(row["name"]))


def _changed(options: argparse.Namespace, row: listing.Row, totals: TotalsByName) -> listing.Row:
    """Returns the row of an experiment as changed by --set and --smoke."""
    mesh = _resolve(options, row["name"]).DEVICE_MESH_SHAPE
    return listing.with_figures(row, mesh, totals.of(row["name"]))


def _weights_of(experiment: Any) -> dict[str, Any]:
    from registry.records.snapshot import weight_summary

    return weight_summary(experiment)


def show(options: argparse.Namespace) -> int:
    """Shows what differs from the template; --all shows all knobs and the resolved config."""
    from registry.records import json_values
    from registry.records.knob_docs import groups, meanings
    from registry.records.snapshot import snapshot

    (name,) = names(options, 1, 1, "one name")
    experiment = _resolve(options, name)
    cls = type(experiment)
    texts = {"doc": cls.__doc__ or "", "groups": groups(cls), "meanings": meanings(cls)}
    draw = partial(render.summary, **texts, is_complete=options.all)
    return printed(options, snapshot(experiment), draw, json_values.of_snapshot)


def weights(options: argparse.Namespace) -> int:
    """Shows the weight table: shape, spec, role, bytes per device."""
    (name,) = names(options, 1, 1, "one name")
    return printed(options, _weights_of(_resolve(options, name)), render.weights)


def diff(options: argparse.Namespace) -> int:
    """Shows differences; A and B are names, run folders or experiment.json files; --plan compares compiled updates."""
    from registry.records import json_values
    from registry.records.diff import diff, is_equal
    from registry.records.snapshot import snapshot
    from registry.tool import plans

    a, *rest = names(options, 1, 2, "one or two names")
    if options.plan:
        plans.start()
    stored = [_stored(name) for name in (a, *rest)]
    left = stored[0] or snapshot(_resolve(options, a, [] if options.set or rest else None))
    if rest:
        right = stored[1] or snapshot(_resolve(options, rest[0]))
    elif stored[0]:  # a run folder compared with the current class of that name
        right = _today(options, left)
    elif options.set:
        right = snapshot(_resolve(options, a))
    else:
        raise UsageError("diff of one name needs --set=..., or a second name.")
    if any(stored):
        left, right = (side if "versions" in side else {**side, **_made_now(options, side)} for side in (left, right))
    compiled = [_small_plan(options, side) for side in (left, right)] if options.plan else None
    difference = diff(left, right, compiled)
    printed(options, difference, render.difference, json_values.of_difference)
    return 0 if is_equal(difference) else 1


def _small_plan(options: argparse.Namespace, side: dict[str, Any]) -> Any:
    from registry.resolve import resolve_recorded
    from registry.tool.plans import small_plan

    return small_plan(resolve_recorded(side, imports=options.imports))


def _stored(name: str) -> dict[str, Any] | None:
    """Returns the snapshot in a run folder or file of that name; None for the name of an experiment."""
    from registry.records.record import load
    from tasks.storage.files import place

    path = place(name)
    if path.exists():
        return load(path)
    if "/" in name:
        raise UsageError(
            f"Run folder '{name}' does not exist. Give the --workdir of a run, or the name of an experiment."
        )
    return None


def _today(options: argparse.Namespace, stored: dict[str, Any]) -> dict[str, Any]:
    """Returns the experiment of a run folder, from its current class or, if that is gone, from the recorded configs."""
    from registry.records.snapshot import rebuilt, snapshot
    from registry.resolve import resolve_recorded
    from registry.values import show

    try:
        experiment = resolve_recorded(stored, options.set, imports=options.imports)
        chosen = re.fullmatch(r"MESHES\['(.*)'\]", stored["knobs"].get("DEVICE_MESH_SHAPE", {}).get("owner", ""))
        if chosen and chosen[1] in experiment.machine_meshes:  # the run's devices had a mesh of their own
            experiment = experiment.with_mesh_of(chosen[1])
        # On the devices of the run: the mesh of a small experiment, or one with -1, depends on the available devices.
        same = all(show(getattr(experiment, name)) == stored["knobs"].get(name, {}).get("value") for name in MESH)
        return snapshot(experiment, stored["mesh"] if same else None)
    except UsageError as error:
        if options.set or "fiddle" not in stored:
            raise
        print(f"{first_line(error)}. Compared with the recorded configs, built by the current code.", file=sys.stderr)
        return rebuilt(stored)


def _made_now(options: argparse.Namespace, side: dict[str, Any]) -> dict[str, Any]:
    from registry.records.provenance import made_now

    name = side["experiment"].rpartition(".")[0]
    return made_now((*options.imports, name))


def check(options: argparse.Namespace) -> int:
    """Validates experiments (default: all) against their meshes; --lower lowers their updates for TPUs and GPUs."""
    from registry.resolve import load, resolve
    from registry.user_code import clear_errors

    rows = []

    def add(name: str, validate: Callable[[], Any]) -> None:
        try:
            with clear_errors(f"{name} cannot be checked"):
                validate()
            rows.append({"name": name, "ok": True, "reason": ""})
        except UsageError as error:
            rows.append({"name": name, "ok": False, "reason": str(error)})

    for module in options.imports:
        add(module, partial(load, module))
    rows = [row for row in rows if not row["ok"]]  # a module is listed only if it fails
    for name in _tracked(options.names or _known_keys(options), "Checking"):
        add(name, lambda name=name: _check_one(resolve(name, options.set, smoke=options.smoke), lower=options.lower))
    printed(options, rows, render.checks)
    return 0 if all(row["ok"] for row in rows) else 2


def _check_one(experiment: Any, *, lower: bool) -> None:
    """Checks an experiment against its mesh; a small one against its mesh folded onto eight devices."""
    from registry.checks import check
    from registry.experiment import owner
    from registry.tool.plans import check_lowering

    is_folded = experiment.smoke and owner(type(experiment), "DEVICE_MESH_SHAPE") != "--set"
    mesh = experiment.mesh_shape(SMALL_DEVICES) if is_folded else None
    built = check(experiment, mesh)
    if lower:
        check_lowering(experiment, built, mesh)


def _tracked(items: Sequence[Any], description: str) -> Iterable[Any]:
    """The items, with a progress bar on a terminal."""
    if len(items) < 2 or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=description, console=Console(stderr=True), transient=True)


def tree(options: argparse.Namespace) -> int:
    """Shows the inheritance of all experiments."""
    from registry.resolve import find

    names(options, 0, 0, "no names")
    from registry.experiment import Experiment, cls_key

    pairs = set()
    for key in _keys(options):
        line = [cls for cls in find(key).__mro__ if issubclass(cls, Experiment)]
        pairs |= {(cls_key(parent), cls_key(child)) for child, parent in pairwise(line)}
    children: dict[str, list[str]] = {}
    for parent, child in sorted(pairs):
        children.setdefault(parent, []).append(child)
    return printed(options, {"root": cls_key(Experiment), "children": children}, render.tree)


def explain(options: argparse.Namespace) -> int:
    """Shows the class and line that set a knob, a config field or a weight's spec."""
    from registry.explain import explain
    from registry.records import json_values
    from registry.records.knob_docs import meanings

    name, path = names(options, 2, 2, "a name and a path")
    experiment = _resolve(options, name)
    meaning = meanings(type(experiment)).get(path.partition(".")[0], "")

    def draw(steps: list[dict[str, Any]]) -> None:
        if meaning:
            print(f"{path.partition('.')[0]}: {meaning}")
        render.steps(steps)

    return printed(options, explain(experiment, path), draw, json_values.of_steps)


def golden(options: argparse.Namespace) -> int:
    """Compares with the files in tests/golden; --update writes them, --sections selects parts."""
    from registry.tool import golden, plans

    names = _tracked(options.names or _keys(options), "Comparing")
    chosen = golden.SECTIONS if options.sections is None else tuple(options.sections.split(","))
    if golden.PLAN in chosen:
        plans.start()
    rows = [golden.compare(_resolve(options, name), update=options.update, sections=chosen) for name in names]
    printed(options, rows, render.checks)
    return 0 if all(row["ok"] for row in rows) else 1


def new(options: argparse.Namespace) -> int:
    """Writes an experiment: its first lines, or with --from the model of a config.json; NAME is module.Class."""
    from registry.tool.scaffold import scaffold

    if options.source is not None:
        from registry.tool.foreign_model import write_model

        (name,) = names(options, 1, 1, "a new name with --from")
        if options.set:
            raise UsageError("--set has no effect on the model of --from. Edit the class that it writes.")
        return printed(options, write_model(options.source, name, Path.cwd()), render.created)
    base, name = names(options, 2, 2, "a base and a new name")
    path = scaffold(_written(_resolve(options, base)), name, Path.cwd())
    return printed(options, {"path": str(path), "name": name}, render.created)


def _written(experiment: Any) -> Any:
    from registry.experiment import written_classes

    return written_classes(type(experiment))[0]
