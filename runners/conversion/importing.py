"""Imports weights of other code bases into a new run folder."""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layers.errors import UsageError
from runners.flags import check_module_flags
from tasks.storage.files import Place, place, write_whole

if TYPE_CHECKING:  # imports jax
    from registry.experiment import Experiment
    from runners.conversion.foreign_files import ForeignWeights
    from runners.session import Session


def run(options: argparse.Namespace) -> int:
    """Imports as the flags of runners.convert select; returns the exit code."""
    from runners.conversion.fitting import fitted, notes
    from runners.conversion.foreign_files import read_weights
    from runners.conversion.model_folder import PATH
    from runners.conversion.name_maps import name_map
    from runners.conversion.renaming import Layout, name_of
    from runners.session import Session

    refuse_checkpoints(options.workdir)
    source = options.source = _folder_of(options)
    if options.format is None:
        settings, file = _of_model_folder(options), read_weights(source)
        experiment = _resolved(options, settings)
    else:
        experiment = _resolved(options, [])
        file = read_weights(source)
        settings = _sizes(options, file, type(experiment).knobs())
        experiment = _resolved(options, settings) if settings else experiment
    check_module_flags(options)
    session = Session(experiment)
    table = session.task.weight_table()
    names = name_map(options.format or options.model_type, [name_of(row) for row in table])
    layout = Layout(names, table)
    tensors = fitted(layout, file, source, type(experiment).knobs())
    if any(setting.startswith(f"{PATH}={source}") for setting in settings):
        settings = _with_own_tokenizer(options, settings)
        experiment = _resolved(options, settings)
        session = Session(experiment)
    workdir = _write_run(options, session, lambda: _loaded(session, layout, tensors))
    if settings:
        print(f"From {'config.json' if options.format is None else 'the file'}: {', '.join(settings)}.", flush=True)
    for note in (*notes(names, experiment), *_changes(options, experiment)):
        print(note, flush=True)
    size = sum(row.size for row in table)
    print(f"Imported {size:,} weights of {source} as step 0 of {session.name} in '{workdir}'.", flush=True)
    return 0


def _folder_of(options: argparse.Namespace) -> str:
    """Returns --from; the folder of a config.json."""
    path = Path(options.source)
    return str(path.parent) if options.format is None and path.name == "config.json" else options.source


def _resolved(options: argparse.Namespace, settings: list[str]) -> "Experiment":
    """Returns the experiment of the flags, with these settings before those of --set."""
    from registry.resolve import resolve

    return resolve(options.exp, [*settings, *options.set], smoke=bool(options.smoke), imports=options.imports)


def _of_model_folder(options: argparse.Namespace) -> list[str]:
    """Returns the settings of the model in a folder, and sets `exp` and `model_type` of the options.

    Raises:
      UsageError: its config.json is not supported, or describes another model than --exp.
    """
    from registry.hugging_face import families, keys
    from registry.hugging_face.entry import stated
    from registry.hugging_face.representation import require_same_model
    from runners.conversion.model_folder import vocabulary_settings
    from runners.conversion.name_maps import MAPS

    model_type = keys.load(options.source).get("model_type")
    if model_type in MAPS and model_type not in families.FAMILIES:
        raise UsageError(
            f"The config.json of {model_type} models is not read (got '{options.source}'). "
            f"Give --format={model_type} and --exp, the experiment with its sizes."
        )
    family, knobs = families.read(options.source)
    options.model_type = family.model_type
    named = {setting.partition("=")[0] for setting in options.set}
    settings = []
    if options.exp is None:
        options.exp = family.base
        settings = [f"{name}={_text(value)}" for name, value in stated(family, knobs).items()]
    else:
        require_same_model(_resolved(options, []), family, knobs, options.source)
    if not named & {"VOCABULARY", "DATA"}:
        settings += vocabulary_settings(options.source)
    return [setting for setting in settings if setting.partition("=")[0] not in named]


def _changes(options: argparse.Namespace, experiment: "Experiment") -> Iterator[str]:
    """Yields notes on what --set has changed in the model of a folder."""
    from registry.hugging_face import families
    from registry.hugging_face.representation import model_differences

    if options.format is None:
        for path, theirs, ours in model_differences(experiment, *families.read(options.source)):
            yield f"Note: {path} is {theirs} in '{options.source}' (got {ours}), so outputs differ."


def _text(value: Any) -> str:
    from registry.values import show

    return value if isinstance(value, str) else show(value)


def _with_own_tokenizer(options: argparse.Namespace, settings: list[str]) -> list[str]:
    """Copies the tokenizer into the run folder; returns the settings with its path there.

    Raises:
      UsageError: a file cannot be read or written.
    """
    from runners.conversion.model_folder import GENERATION, PATH, copy_tokenizer, with_ids_of_config
    from runners.training.workdir import TOKENIZER

    own = place(options.workdir) / TOKENIZER
    generation = with_ids_of_config(Path(options.source))
    try:
        copy_tokenizer(Path(options.source), own)
        write_whole(own / GENERATION, json.dumps(generation, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"The tokenizer cannot be copied to '{own}': {error.strerror or error}.") from error
    return [setting.replace(f"{PATH}={options.source}", f"{PATH}={own}", 1) for setting in settings]


def _loaded(session: "Session", layout: Any, tensors: Mapping[str, Any]) -> Any:
    from runners.conversion.loading import loaded

    return session.functions.start_from(loaded(session, layout, tensors))


def _write_run(options: argparse.Namespace, session: "Session", read: Any) -> Place:
    """Writes a new run folder with the state that `read` returns as its step 0; returns the folder."""
    from runners.training.checkpoints import Checkpoints
    from runners.training.history import start_of
    from runners.training.workdir import open_workdir, sole_use

    workdir = open_workdir(options.workdir, session.experiment, session.mesh_shape, record=False)
    with sole_use(workdir), session.placed():
        refuse_checkpoints(options.workdir)
        checkpoints = Checkpoints(workdir)
        checkpoints.save(0, read(), {"tokens_seen": 0, "input": None}, None)
        checkpoints.close()
        # Last, so that an interrupted import leaves no run folder that would train from initial weights.
        parent = {"file": options.source, "format": options.format or options.model_type}
        start = start_of(options, session.experiment)
        open_workdir(options.workdir, session.experiment, session.mesh_shape, start=start, parent=parent)
    return workdir


def _sizes(options: argparse.Namespace, file: "ForeignWeights", knobs: Mapping[str, Any]) -> list[str]:
    """Returns settings of the size knobs that follow from the file and not from --set, if the format's sizes vary."""
    from runners.conversion.fitting import sizes_in
    from runners.conversion.name_maps import MAPS

    names = MAPS.get(options.format)
    if names is None or not names.sizes_vary:
        return []
    found = sizes_in(names, file.arrays)
    if file.num_heads:
        found["NUM_HEADS"] = file.num_heads
    named = {setting.partition("=")[0] for setting in options.set}
    text = lambda value: (",".join(value) or "()") if isinstance(value, tuple) else str(value).lower()
    return [f"{knob}={text(value)}" for knob, value in found.items() if knob in knobs and knob not in named]


def refuse_checkpoints(workdir: str) -> None:
    """Raises a UsageError if the run folder has checkpoints."""
    from runners.training.checkpoints import FOLDER

    if any((place(workdir) / FOLDER).glob("[0-9]*")):
        raise UsageError(f"'{workdir}' already has checkpoints. Choose another --workdir.")
