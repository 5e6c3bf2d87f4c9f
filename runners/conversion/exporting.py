"""Exports a run's weights: to a safetensors file of another code base, or to the folder of a Hugging Face model."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layers.errors import UsageError
from runners.flags import check_module_flags

if TYPE_CHECKING:  # imports jax
    from runners.conversion.renaming import Layout
    from runners.session import Session
    from tasks.storage.files import Place

DTYPES = {"float32": "F32", "bfloat16": "BF16"}  # by --dtype, their names in safetensors files


def run(options: argparse.Namespace) -> int:
    """Exports as the flags of runners.convert select; returns the exit code."""
    from registry.resolve import resolve_recorded
    from runners.conversion.fitting import notes, require_exportable
    from runners.conversion.name_maps import name_map
    from runners.conversion.renaming import Layout, name_of
    from runners.session import Session
    from runners.training.checkpoints import require_checkpoints, session_of
    from runners.training.workdir import open_workdir, recorded

    require_checkpoints(options.workdir)
    experiment = resolve_recorded(recorded(options.workdir), options.set, imports=options.imports)
    check_module_flags(options)
    run = Session(experiment)
    workdir = open_workdir(options.workdir, run.experiment, run.mesh_shape, record=False)
    which = options.checkpoint or "last"
    session = session_of(run, workdir, which)
    table = session.task.weight_table()
    family = None if is_file(options) else _family(options, session)
    names = name_map(options.format if family is None else family.model_type, [name_of(row) for row in table])
    layout = Layout(names, table)
    require_exportable(layout)
    step, tensors = _tensors(session, workdir, which, layout)
    if family is None:
        _write_file(options, tensors)
    else:
        _write_folder(options, session, family, tensors)
    for note in notes(names, experiment):
        print(note, flush=True)
    size = sum(row.size for row in table)
    print(f"Exported {size:,} weights of {session.name} at step {step} to {options.to}.", flush=True)
    return 0


def is_file(options: argparse.Namespace) -> bool:
    """Returns whether --to names a file, not the folder of a Hugging Face model."""
    from registry.hugging_face.families import FAMILIES
    from runners.conversion.foreign_files import PICKLES

    is_named_so = Path(options.to).suffix in (".safetensors", *PICKLES)
    return is_named_so or (options.format is not None and options.format not in FAMILIES)


def _family(options: argparse.Namespace, session: "Session") -> Any:
    from registry.hugging_face.representation import representing_family

    try:
        return representing_family(session.experiment, options.format)
    except UsageError as error:
        raise UsageError(f"{error} For a file of another format, give --format and --to=FILE.safetensors.") from error


def _tensors(session: "Session", workdir: "Place", which: str, layout: "Layout") -> tuple[int, dict[str, Any]]:
    """Returns the step of the checkpoint and its weights as tensors of the format."""
    import jax
    from flax import traverse_util

    from runners.conversion.renaming import slice_of
    from runners.training.checkpoints import Checkpoints

    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True).require(session.abstract.state, which)
        variables = session.functions.evaluated(state)
    flat = traverse_util.flatten_dict(jax.block_until_ready(variables), sep="/")
    return int(state.step), layout.to_theirs(slice_of(flat))


def _write_file(options: argparse.Namespace, tensors: dict[str, Any]) -> None:
    from runners.conversion.tensors import write_safetensors

    target = Path(options.to)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(target, tensors, DTYPES.get(options.dtype or ""))
    except OSError as error:
        raise UsageError(
            f"The weights cannot be written to '{options.to}': {error.strerror or error}. Choose another --to."
        ) from error


def _write_folder(options: argparse.Namespace, session: "Session", family: Any, tensors: dict[str, Any]) -> None:
    from runners.conversion import model_folder
    from runners.conversion.tokenizers import special_ids, write_tokenizer

    vocabulary = session.task.vocabulary
    dtype = options.dtype or type(session.experiment).knobs()["PARAM_DTYPE"]
    with model_folder.new_folder(options.to) as folder:
        write_tokenizer(vocabulary, folder)
        model_folder.write_configs(folder, session.experiment, family, dtype, special_ids(vocabulary, folder))
        model_folder.write_weights(folder, tensors, DTYPES[dtype], int(options.shard_gb * 1e9))
