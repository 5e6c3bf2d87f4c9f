"""Kinds of what describes and holds a run: --set, config.json, records, metrics, weights, checkpoints."""

import contextlib
import functools
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from layers.errors import UsageError, first_line
from registry.experiment import knob_types
from registry.hugging_face import families
from registry.hugging_face.entry import family_of
from registry.index import entries
from registry.records import snapshot as snapshots
from registry.records.record import EXPERIMENT, load
from registry.resolve import find, resolve
from registry.runs import comparison, table
from registry.runs.folders import METRICS, TIMES
from registry.runs.lineage import lineage
from registry.runs.rerun import rerun
from registry.runs.run import Run
from registry.runs_pages.runs_page import RunPages
from registry.values import show
from runners.conversion.foreign_files import read_weights
from runners.conversion.tensors import held, write_safetensors
from runners.main import parse
from runners.session import Session
from runners.training.checkpoint_parts.files import saved_state
from runners.training.checkpoints import Checkpoints
from runners.training.history import Start
from runners.training.input_state import own, require_same_data
from runners.training.workdir import open_workdir, recorded
from testing.fuzz.kind import Files, Kind, each, files_in, torch_library, write_files
from testing.fuzz.mutations import (
    ODD,
    SCRIPT,
    Mutation,
    mutated_bytes,
    mutated_files,
    mutated_json,
    mutated_json_lines,
    mutated_tree,
    texts,
    to_json,
)

STATE = "checkpoints/2/extra/metadata"
EXPERIMENT_NAME = "tiny.StdlibTiny"
SMALL = (
    "MODEL_DIM=16",
    "SEQ_LEN=16",
    "NUM_HEADS=2",
    "NUM_LAYERS=1",
    "BATCH_SIZE=2",
    "DATA=synthetic",
    "VOCAB_SIZE=300",
)
FIELDS = (
    "task.model.stack",
    "task.optimizer.schedule.peak",
    "train.num_steps",
    "test.inputs.validation",
    "task..",
    "task",
)
LITERALS = (
    "(1, 2)",
    "[1, 2]",
    "{'a': 1}",
    "P('data', None)",
    "Phase(NUM_STEPS=2)",
    "2x4",
    "*x1",
    "5*local + global",
    "1e400",
)
FOLDED = ("(", "[", "-", "{1:", "not ", "P(", "a.")


def _knobs(folder: Path) -> dict[str, str]:
    del folder
    experiment = find(EXPERIMENT_NAME)
    return {name: show(value) for name, value in experiment.knobs().items() if name in knob_types(experiment)}


@st.composite
def _mutated_settings(draw: Any, knobs: Mapping[str, str]) -> list[str]:
    """Returns up to three values of --set: of knobs and fields, some misspelled, with odd texts or near misses."""
    settings = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from((*knobs, *FIELDS)))
        name = (
            draw(st.sampled_from((name, name, name, name[:-1], name.lower(), f"{name}.x")))
            if draw(st.booleans())
            else name
        )
        literal = st.sampled_from((*LITERALS, knobs.get(name, "1")))
        text = draw(st.one_of(texts(), literal, st.sampled_from([str(value)[:5000] for value in ODD])))
        edit = draw(st.integers(0, 5))
        if edit == 0:
            text = draw(mutated_bytes(text.encode(errors="surrogatepass"))).decode(errors="surrogateescape")
        elif edit == 1:
            text = draw(st.sampled_from(FOLDED)) * draw(st.sampled_from((10, 300, 20_000)))
        settings.append(f"{name}={text}" if draw(st.integers(0, 15)) else draw(texts()))
    return settings


def _read_settings(settings: list[str], folder: Path) -> None:
    """Parses the command and resolves the experiment and its configs, as every mode of the runner does."""
    with contextlib.redirect_stderr(io.StringIO()):
        options = parse([f"--exp={EXPERIMENT_NAME}", f"--workdir={folder}", *(f"--set={text}" for text in settings)])
    snapshots.flat_config(resolve(options.exp, options.set))


def _model_configs(folder: Path) -> list[bytes]:
    """Returns the config.json of a model of each family of Hugging Face's models."""
    del folder
    models: dict[str, bytes] = {}
    for name in entries():
        family = family_of(cls := find(name))
        if family is not None and family.model_type not in models:
            models[family.model_type] = json.dumps(family.config(cls())).encode()
    return list(models.values())


def _read_model_config(content: bytes, folder: Path) -> None:
    """Reads the file, and resolves the experiment with its knobs: the class that `registry new --from` would write."""
    write_files({"config.json": content}, folder)
    family, knobs = families.read(str(folder))
    snapshots.flat_config(family.base_class().derive(**knobs)())


@functools.cache
def session() -> Session:
    """Returns the session of a small experiment, compiled for no update."""
    return Session(resolve(EXPERIMENT_NAME, SMALL), jax.devices()[:1])


def run_folder(folder: Path) -> Files:
    """Returns the files of a run folder with two starts, metrics of all splits and one checkpoint."""
    here, run = session(), folder / "run"
    command = ("python", "-m", "runners.main", f"--exp={EXPERIMENT_NAME}", f"--workdir={run}")
    open_workdir(str(run), here.experiment, here.mesh_shape, start=Start(command=command))
    record = json.loads((run / EXPERIMENT).read_text())
    moment = "2026-01-01T00:00:00+00:00"
    ended = {"at": "2026-01-01T00:02:00+00:00", "step": 4, "reason": "SIGTERM"}
    start = {"started": moment, "step": 0, "command": record["command"], "code": record["code"], "ended": ended}
    start |= {"versions": record["versions"], "data": {"train.input": {"is": "synthetic", "fingerprint": None}}}
    start |= {"devices": {"count": 1, "kind": "cpu", "processes": 1}, "experiment": EXPERIMENT_NAME, "smoke": False}
    record["starts"] = [start, {**start, "step": 4, "ended": {**ended, "step": 8, "reason": "finished"}}]
    record["parent"] = {"workdir": "elsewhere", "path": "/elsewhere", "step": 3, "experiment": EXPERIMENT_NAME}
    (run / EXPERIMENT).write_text(json.dumps(record))
    scalars = {"loss": 2.5, "tokens_seen": 64, "flops": 1e9, "steps_per_second": 2.0, "tokens_per_second": 32.0}
    lines: list[Mapping[str, Any]] = []
    for step in (2, 4, 6, 8):
        lines += [
            {"step": step, "split": "train", **scalars},
            {"step": step, "split": "validation", "loss": 2.0 + 1 / step},
        ]
        lines.append(
            {"step": step, "split": "evals", "arc/acc,none": 0.25, "arc/acc_stderr,none": 0.1, "arc/documents": 5}
        )
    (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = [{"time": 1e9, "step": 0, "starts": True}, {"time": 1e9 + 5, "step": 4, "updates": 3.0}]
    (run / TIMES).write_text("".join(json.dumps(line) + "\n" for line in times))
    (run / "samples").mkdir()
    (run / "samples" / "8.txt").write_text("a sample")
    return files_in(run)


def _mutated_records(valid: Files) -> SearchStrategy[Files]:
    """Returns run folders of which the record, its configs of classes or its metrics are mutated."""
    return mutated_files(valid, {EXPERIMENT: _mutated_record, ".jsonl": mutated_json_lines})


@st.composite
def _mutated_record(draw: Any, valid: bytes) -> bytes:
    """Returns a mutated record, half of them in a small part of it, because its configs and weights are large."""
    if draw(st.booleans()):
        return draw(mutated_json(valid))
    tree = json.loads(valid)
    part = draw(st.sampled_from([name for name in tree if name not in ("fiddle", "weights")]))
    tree[part] = draw(mutated_tree(tree[part]))
    return to_json(tree, ascii_only=draw(st.booleans()))


def _read_record(files: Files, folder: Path) -> None:
    """Does what `registry runs`, `compare`, `lineage`, `rerun`, `site` and the runner do with run folders."""
    write_files(files, folder / "run")
    run = Run(folder / "run")
    each(
        lambda: table.row(run, table.varied([run]) if run.problem is None else ()),
        lambda: table.group_row([run], run.settings, []),
        lambda: _write_pages(run, folder / "pages"),
        lambda: lineage(run),
        lambda: rerun(run),
        lambda: comparison.compare([run, run]),
        lambda: recorded(str(run.folder)),
        lambda: snapshots.rebuilt(load(run.folder)),
    )


def _write_pages(run: Run, folder: Path) -> None:
    """Writes the pages of a run; none of their texts may be markup."""
    RunPages(folder).write([run.folder])
    for page in (*folder.glob("*.html"), *(folder / "runs").iterdir()):
        assert SCRIPT not in page.read_text(), f"{page.name} has markup of a file"


def saved_run(folder: Path) -> Files:
    """Returns the files of a run folder with two checkpoints of a small experiment."""
    here = session()
    checkpoints = Checkpoints(folder, here.train)
    with here.placed():
        state = here.functions.init()
    source = here.train.input.iterator()
    for step in (1, 2):
        next(source)
        extra = {"tokens_seen": 32 * step, "flops": 1e6, "input": source.state(), "window_tokens": 0}
        checkpoints.save(step, state, extra, loss=2.5)
    checkpoints.close()
    return files_in(folder)


def _mutated_checkpoints(valid: Files) -> SearchStrategy[Files]:
    """Returns run folders of which files of arrays, their metadata, metrics or the saved state are mutated."""
    either: Mutation = lambda content: (
        mutated_json(content) | mutated_bytes(content) if _is_json(content) else mutated_bytes(content)
    )
    return mutated_files(valid, {"": either})


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _read_checkpoints(files: Files, folder: Path) -> None:
    """Restores the newest readable checkpoint and the position of its input, as the training loop does."""
    here = session()
    write_files(files, folder)
    checkpoints = Checkpoints(folder, here.train)
    try:
        restored = checkpoints.restore(here.abstract.state)
    finally:
        checkpoints.close()
    if restored is not None:
        use_saved_state(restored[1])


def use_saved_state(extra: dict[str, Any]) -> None:
    """Uses what a checkpoint holds besides arrays, as runners.training.train does."""
    source = session().train.input
    require_same_data(extra["input"], source)
    position = own(extra["input"])
    if position is not None:
        source.iterator().restore(position)
    assert extra["tokens_seen"] + extra.pop("window_tokens", 0) >= 0
    assert (extra.get("flops") or 0) * 1.0 >= 0


def _read_saved_state(content: bytes, folder: Path) -> None:
    """Reads and uses the saved state alone, which takes a hundredth of the time of a checkpoint with arrays."""
    write_files({"extra/metadata": content}, folder)
    try:
        extra = saved_state(folder)
    except (OSError, ValueError) as error:  # the checkpoint counts as damaged
        raise UsageError(first_line(error)) from error
    use_saved_state(extra)


def weights(folder: Path) -> list[Files]:
    """Returns a safetensors file, two shards with an index, 8-bit weights, and a pickle of torch."""
    torch = torch_library()

    arrays = {"a.weight": np.ones((4, 3), np.float32), "b.weight": np.ones(5, np.float16)}
    path = folder / "model.safetensors"
    write_safetensors(path, {key: held(array) for key, array in arrays.items()})
    one = path.read_bytes()
    index = {"metadata": {"total_size": 58}, "weight_map": {"a.weight": "1.safetensors", "b.weight": "2.safetensors"}}
    stream = io.BytesIO()
    torch.save({key: torch.tensor(array) for key, array in arrays.items()}, stream)
    return [
        {"model.safetensors": one},
        {"model.safetensors.index.json": json.dumps(index).encode(), "1.safetensors": one, "2.safetensors": one},
        {"pytorch_model.bin": stream.getvalue()},
    ]


@st.composite
def _mutated_header(draw: Any, valid: bytes) -> bytes:
    """Returns a safetensors file with a mutated header of the right length, or mutated bytes."""
    if draw(st.booleans()):
        return draw(mutated_bytes(valid))
    end = 8 + int.from_bytes(valid[:8], "little")
    header = draw(mutated_json(valid[8:end]))
    return len(header).to_bytes(8, "little") + header + valid[end:]


def _mutated_weights(valid: list[Files]) -> SearchStrategy[Files]:
    mutations = {".safetensors": _mutated_header, ".json": mutated_json}
    return st.sampled_from(valid).flatmap(lambda files: mutated_files(files, mutations))


def _read_weights(files: Files, folder: Path) -> None:
    write_files(files, folder)
    for tensor in read_weights(str(folder)).arrays.values():
        tensor.read()


RUN_KINDS = (
    Kind("set", _knobs, _mutated_settings, _read_settings),
    Kind("config", _model_configs, lambda valid: st.sampled_from(valid).flatmap(mutated_json), _read_model_config),
    Kind("record", run_folder, _mutated_records, _read_record),
    Kind("safetensors", weights, _mutated_weights, _read_weights),
    Kind("checkpoint", saved_run, _mutated_checkpoints, _read_checkpoints),
    Kind("saved_state", lambda folder: saved_run(folder)[STATE], mutated_json, _read_saved_state),
)
