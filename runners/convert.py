"""Weight conversion: imports checkpoints of other code bases into run folders and exports run folders to them.

python -m runners.convert import --format=gpt2 --from=model.safetensors --exp=gpt2.Gpt2Small --workdir=runs/gpt2
python -m runners.convert export --format=gpt2 --workdir=runs/gpt2 --to=model.safetensors
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layers.errors import UsageError, did_you_mean
from runners.conversion.name_maps import FORMATS
from runners.flags import Parser, check_module_flags, parse_with_modules, prepare_devices, run_app
from tasks.storage.files import Place, place

if TYPE_CHECKING:  # imports jax
    from runners.session import Session

VERBS = {"import": ("format", "source", "exp", "workdir"), "export": ("format", "workdir", "to")}  # required flags
ONLY = {"import": ("source", "exp", "smoke"), "export": ("to", "checkpoint")}  # flags that the other verb lacks
FLAGS = {"source": "--from"}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the verb and the flags.

    Raises:
      UsageError: an unknown verb, flag or format, or a flag that is missing or of the other verb.
    """
    options = parse_with_modules(_parser, arguments)
    if options.verb not in VERBS:
        raise UsageError(f"Unknown verb '{options.verb}'. {did_you_mean(options.verb, VERBS)}")
    for name in VERBS[options.verb]:
        if not getattr(options, name):
            raise UsageError(f"{options.verb} requires {FLAGS.get(name, f'--{name}')}. Add it.")
    for verb, names in ONLY.items():
        for name in names:
            if verb != options.verb and getattr(options, name) is not None:
                raise UsageError(f"{FLAGS.get(name, f'--{name}')} is a flag of {verb} (got {options.verb}). Remove it.")
    if options.format not in FORMATS:
        raise UsageError(f"Unknown format '{options.format}'. {did_you_mean(options.format, FORMATS)}")
    options.command = ("python", "-m", "runners.convert", *arguments)
    return options


def _parser() -> Parser:
    parser = Parser("runners.convert", __doc__, with_absl=True)
    parser.add_argument("verb", help=" | ".join(VERBS))
    add = parser.add_argument
    add("--format", help=" | ".join(FORMATS))
    add("--from", dest="source", metavar="FILE", help="import: .safetensors, .pt, .pth, .bin, an index or its folder")
    add("--exp", help="import: the experiment that takes the weights")
    add("--workdir", help="the run folder: created by import, read by export")
    add("--to", metavar="FILE.safetensors", help="export: the file to write")
    add("--checkpoint", help="export: last (the default), best or a step")
    add("--smoke", action="store_true", default=None, help="import: a small version of the experiment")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="as in runners.main; repeatable")
    add("--import", action="append", default=[], dest="imports", metavar="MODULE", help="import a module first")
    add("--host_devices", type=int, metavar="N", help="N virtual CPU devices")
    return parser


def run(options: argparse.Namespace) -> int:
    """Imports or exports as the flags select; returns the exit code."""
    prepare_devices(options.host_devices)
    return (_import if options.verb == "import" else _export)(options)


def _import(options: argparse.Namespace) -> int:
    from registry.resolve import resolve
    from runners.conversion import renaming
    from runners.conversion.foreign_files import read_weights
    from runners.conversion.name_maps import name_map
    from runners.session import Session

    _refuse_checkpoints(options.workdir)
    chosen: Any = {"smoke": bool(options.smoke), "imports": options.imports}
    experiment = resolve(options.exp, options.set, **chosen)
    check_module_flags(options)
    file = read_weights(options.source)
    sizes = _sizes(options, file, type(experiment).knobs())
    if sizes:
        experiment = resolve(options.exp, [*sizes, *options.set], **chosen)
    session = Session(experiment)
    table = session.task.weight_table()
    names = name_map(options.format, [renaming.name_of(row) for row in table])
    ours = renaming.to_ours(names, table, file, options.source, type(experiment).knobs())
    workdir = _write_run(options, session, ours)
    if sizes:
        print(f"Sizes from the file: {', '.join(sizes)}.", flush=True)
    _say(names, experiment)
    size = sum(row.size for row in table)
    print(f"Imported {size:,} weights of {options.source} as step 0 of {session.name} in '{workdir}'.", flush=True)
    return 0


def _write_run(options: argparse.Namespace, session: "Session", ours: Mapping[str, Any]) -> Place:
    """Writes a new run folder with the weights `ours`, by name, as its step 0; returns the folder."""
    import jax
    from flax import traverse_util

    from runners.conversion.renaming import name_of
    from runners.training.checkpoints import Checkpoints
    from runners.training.history import start_of
    from runners.training.workdir import open_workdir, sole_use

    workdir = open_workdir(options.workdir, session.experiment, session.mesh_shape, record=False)
    with sole_use(workdir), session.placed():
        _refuse_checkpoints(options.workdir)
        shardings = traverse_util.flatten_dict(session.abstract.state_shardings.variables, sep="/")
        flat = {
            row.path: jax.device_put(ours[name_of(row)].astype(row.dtype), shardings[row.path])
            for row in session.task.weight_table()
        }
        state = session.functions.start_from(traverse_util.unflatten_dict(flat, sep="/"))
        checkpoints = Checkpoints(workdir)
        checkpoints.save(0, state, {"tokens_seen": 0, "input": None}, None)
        checkpoints.close()
        # Last, so that an interrupted import leaves no run folder that would train from initial weights.
        parent = {"file": options.source, "format": options.format}
        start = start_of(options, session.experiment)
        open_workdir(options.workdir, session.experiment, session.mesh_shape, start=start, parent=parent)
    return workdir


def _sizes(options: argparse.Namespace, file: Any, knobs: Mapping[str, Any]) -> list[str]:
    """Returns settings of the size knobs that follow from the file and not from --set, if the format's sizes vary."""
    from runners.conversion.name_maps import MAPS
    from runners.conversion.renaming import sizes_in

    names = MAPS.get(options.format)
    if names is None or not names.sizes_vary:
        return []
    found = sizes_in(names, file.arrays)
    if file.num_heads:
        found["NUM_HEADS"] = file.num_heads
    named = {setting.partition("=")[0] for setting in options.set}
    text = lambda value: (",".join(value) or "()") if isinstance(value, tuple) else str(value).lower()
    return [f"{knob}={text(value)}" for knob, value in found.items() if knob in knobs and knob not in named]


def _export(options: argparse.Namespace) -> int:
    import numpy as np
    from flax import traverse_util

    from registry.resolve import resolve_recorded
    from runners.conversion import renaming
    from runners.conversion.foreign_files import check_target, write_arrays
    from runners.conversion.name_maps import name_map
    from runners.session import Session
    from runners.training.checkpoints import Checkpoints, require_checkpoints
    from runners.training.workdir import open_workdir, recorded

    check_target(options.to)
    require_checkpoints(options.workdir)
    experiment = resolve_recorded(recorded(options.workdir), options.set, imports=options.imports)
    check_module_flags(options)
    session = Session(experiment)
    table = session.task.weight_table()
    names = name_map(options.format, [renaming.name_of(row) for row in table])
    workdir = open_workdir(options.workdir, experiment, session.mesh_shape, record=False)
    with session.placed():
        which = options.checkpoint or "last"
        state, _ = Checkpoints(workdir, read_only=True).require(session.abstract.state, which)
    flat = traverse_util.flatten_dict(state.variables, sep="/")
    ours = {renaming.name_of(row): np.asarray(flat[row.path]) for row in table}
    theirs = renaming.to_theirs(names, table, ours)
    write_arrays(options.to, theirs)
    _say(names, experiment)
    size = sum(row.size for row in table)
    print(f"Exported {size:,} weights of {session.name} at step {int(state.step)} to {options.to}.", flush=True)
    return 0


def _say(names: Any, experiment: Any) -> None:
    from runners.conversion.renaming import notes

    for note in notes(names, experiment):
        print(note, flush=True)


def _refuse_checkpoints(workdir: str) -> None:
    from runners.training.checkpoints import FOLDER

    if any((place(workdir) / FOLDER).glob("[0-9]*")):
        raise UsageError(f"'{workdir}' already has checkpoints. Choose another --workdir.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; prints a known error as one message and returns its exit code."""
    return run_app(parse, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
