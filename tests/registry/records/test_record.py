"""Records of runs that are damaged, or written by somebody else: sentences, and no code of their choice."""

import json

import fiddle as fdl
import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax import numpy as jnp

from layers.errors import UsageError
from registry.build import from_json, to_json
from registry.records import snapshot
from registry.records.record import load
from registry.resolve import resolve
from registry.runs.run import Run
from registry.user_code import is_users
from tests.support.run_folders import record_of, write_run

GOOD = {"MODEL_DIM": "64", "SEED": "1"}
START = {"started": "2026-01-01T00:00:00+00:00", "step": 0}


def run_with(folder, **changes) -> Run:
    return Run(write_run(folder / "run", record_of(GOOD) | changes))


def test_a_good_record_is_read(tmp_path):
    run = run_with(tmp_path)
    assert run.problem is None
    assert load(run.folder)["knobs"]["SEED"]["value"] == "1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"knobs": []}, "the record.knobs is not an object"),
        ({"knobs": {"SEED": "1"}}, "the record.knobs.SEED is not an object"),
        ({"knobs": {"SEED": {"value": 1, "owner": "a"}}}, "the record.knobs.SEED.value is not a text"),
        ({"overrides": "SEED=1"}, "the record.overrides is not an array"),
        ({"config": {"train.num_steps": 5}}, "the record.config.train.num_steps is not a text"),
        ({"totals": {"parameters": 10**400}}, "the record.totals.parameters is not an integer"),
        ({"mesh": {"data": 0}}, "the record.mesh.data is less than 1"),
        ({"weights": [{"path": "a"}]}, r"the record.weights\[0\] has no bytes"),
        ({"starts": [{}]}, r"the record.starts\[0\] has no started"),
        ({"starts": [{**START, "ended": {"at": 5, "step": 1, "reason": "a"}}]}, "ended.at is not a time"),
        ({"starts": [{**START, "devices": {"count": "8"}}]}, "devices has no kind"),
        ({"parent": {"step": 1}}, "the record.parent has no workdir"),
        ({"phases": [{"updates": [1]}]}, r"the record.phases\[0\] has no config"),
        ({"vocabulary": {"fingerprint": "a"}}, "the record.vocabulary has no is"),
        (
            {"knobs": {"NORM": {"value": "f()", "owner": "a"}}},
            "knobs of an earlier version cannot be translated",
        ),
    ],
)
def test_values_of_other_types_are_named(tmp_path, changes, message):
    run = run_with(tmp_path, **changes)
    with pytest.raises(UsageError, match=message):
        assert run.record
    with pytest.raises(UsageError, match=message):
        load(run.folder)
    assert run.state == "broken"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 200_000, b'{"experiment": ', b"null"])
def test_what_is_not_json_has_one_sentence(tmp_path, content):
    run = run_with(tmp_path)
    (run.folder / "experiment.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"experiment.json' cannot be read as a"):
        assert run.record
    with pytest.raises(UsageError, match=r"experiment.json' cannot be read as a"):
        load(run.folder)


@pytest.fixture(scope="module")
def stored():
    experiment = resolve("tiny.StdlibTiny", ["DATA=synthetic"])
    from runners.training.workdir import _resolved

    return {**snapshot.snapshot(experiment), **_resolved(experiment)}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("layers.errors", "os.system"),
        ("tasks.storage.jsonl", "LineFile"),
        ("tasks.storage.files", "write_whole"),
        ("importlib", "import_module"),
        ("functools", "partial"),
        ("this", "s"),
        ("numpy", "load"),
        ("jax.numpy", "load"),
    ],
)
def test_configs_call_no_other_code_than_classes_of_configs(stored, module, name):
    text = json.dumps(stored["fiddle"]["train"])
    here = '"module": "tasks.programs", "name": "TrainProgram"'
    assert here in text
    named = text.replace(here, f'"module": "{module}", "name": "{name}"')
    changed = {**stored, "fiddle": {**stored["fiddle"], "train": json.loads(named)}}
    with pytest.raises(UsageError, match=rf"name {module}.{name}, which a record may not call"):
        snapshot.rebuilt(changed)


def test_configs_of_a_run_are_built(stored):
    assert snapshot.rebuilt(stored)["config"] == stored["config"]


@pytest.mark.parametrize("changes", [{"train": {}}, {"train": {"root": None}}, {"task": {"type": "leaf"}}])
def test_damaged_configs_have_a_sentence(stored, changes):
    with pytest.raises(UsageError, match=r"tiny\.StdlibTiny was run with cannot be read"):
        snapshot.rebuilt({**stored, "fiddle": stored["fiddle"] | changes})


@pytest.mark.parametrize("value", [jax.nn.gelu, jnp.bfloat16, np.float32, optax.linear_schedule, nn.Dense])
def test_functions_and_dtypes_that_configs_have_as_values_are_read(value):
    config = fdl.Config(dict, value=value)
    assert from_json(to_json(config)) == config


def test_code_in_a_run_folder_is_not_imported(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text("{}")
    (folder / "__init__.py").write_text("import pathlib; pathlib.Path('imported').touch()")
    (folder / "payload.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_users("runs.evil.payload")
    with pytest.raises(
        UsageError, match=r"Module .runs\.evil\.payload. is in a run folder, whose code is not imported"
    ):
        resolve("runs.evil.payload.Entry")
    assert not (tmp_path / "imported").exists()


def test_main_is_code_of_the_user():
    assert is_users("__main__")
    assert not is_users("os.path")
