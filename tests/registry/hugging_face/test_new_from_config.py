"""`registry new --from`: the class that is written is the model of the config.json."""

import importlib
import json
import sys
from typing import Any

import pytest

from layers.errors import UsageError
from registry import index
from registry.hugging_face.entry import family_of
from registry.hugging_face.families import FAMILIES
from registry.resolve import find, resolve
from registry.tool.foreign_model import write_model
from registry.tool.scaffold import knob_lines
from tests.registry.hugging_face.small_configs import SCALINGS, model_of, version_4


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Yields a folder whose modules can be imported during a test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("models_of_"):
            del sys.modules[name]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_class_is_the_model(model_type, modules):
    scalings = SCALINGS if model_type == "llama" else ["yarn"]
    contents = {scaling: version_4(model_type, scaling) | {"vocab_size": 320} for scaling in scalings}
    for name, content in contents.items():
        (modules / "config.json").write_text(json.dumps(content))
        row = write_model(str(modules), f"models_of_{model_type}.With{name.title()}", modules)
        assert row["same_model"] == []
    importlib.invalidate_caches()
    module = importlib.import_module(f"models_of_{model_type}")
    family = FAMILIES[model_type]
    for name, content in contents.items():
        cls = getattr(module, f"With{name.title()}")
        assert family_of(cls) is family
        assert cls.DEVICE_MESH_SHAPE == (-1, 1)
        assert model_of(family.config(cls())) == model_of(content)
        base = family.base_class()
        own = {knob: value for knob, value in vars(cls).items() if knob.isupper() and knob != "DEVICE_MESH_SHAPE"}
        specs = {"WEIGHTS", "ACTIVATIONS"}
        assert all(value != getattr(base, knob) for knob, value in own.items() if knob not in specs)


def test_the_command(inside, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(version_4("qwen2")))
    done = inside("registry", "new", "--from=config.json", "my_models.Small")
    assert done.returncode == 0, done.stderr
    assert "parameters, from config.json.\nWrote" in done.stdout
    assert inside("registry", "check", "my_models.Small").returncode == 0
    again = inside("registry", "new", "--from=config.json", "my_models.Small")
    assert again.returncode == 2
    assert "already has a class Small" in again.stderr
    for names in (["new", "--from=config.json"], ["new", "--from=config.json", "StdlibTiny", "my_models.Other"]):
        done = inside("registry", *names)
        assert done.returncode == 2
        assert "new takes a new name with --from" in done.stderr
    done = inside("registry", "new", "--from=nowhere", "my_models.Other")
    assert done.returncode == 2
    assert "'nowhere' cannot be read: No such file or directory" in done.stderr


def test_a_registered_model_is_named(tmp_path):
    content = FAMILIES["llama"].config(resolve("llama.Llama3_2_1B"))
    (tmp_path / "config.json").write_text(json.dumps(content))
    row = write_model(str(tmp_path / "config.json"), "models_of_llama.Again", tmp_path)
    assert row["same_model"] == ["llama.Llama3_2_1B"]
    assert row["parameters"] == 1_235_814_400


def test_two_entries_are_one_model_only_if_one_extends_the_other():
    by_model: dict[str, type] = {}
    for name in index.entries():
        cls = find(name)
        family = family_of(cls)
        if family is not None:
            first = by_model.setdefault(json.dumps(family.config(resolve(name))), cls)
            assert issubclass(cls, first), f"{name} and {first} are the same model"
    assert len(by_model) > 20


def test_other_entries_have_no_family():
    assert family_of(find("tiny.StdlibTiny")) is None


def test_a_model_that_does_not_pass_its_check_is_not_written(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(version_4("llama") | {"vocab_size": 100}))
    with pytest.raises(UsageError, match="does not pass its check: VOCAB_SIZE must be at least 256"):
        write_model(str(tmp_path), "my_models.Small", tmp_path)
    assert not (tmp_path / "my_models.py").exists()


def test_patterns_are_written_by_their_runs():
    lines = knob_lines({"ATTENTION_WINDOW": (*(512,) * 5, None), "FFN": ("gated", "gated", "gated_experts"), "A": (1,)})
    assert lines.splitlines() == [
        "ATTENTION_WINDOW = (*(512,) * 5, None)",
        'FFN = ("gated", "gated", "gated_experts")',
        "A = (1,)",
    ]
    pattern = tuple("gated" if i % 7 in (1, 2, 3, 5) else "gated_experts" for i in range(60))
    text = knob_lines({"FFN": pattern})
    assert max(map(len, text.splitlines())) <= 116
    found: dict[str, Any] = {}
    exec(text, found)
    assert found["FFN"] == pattern
