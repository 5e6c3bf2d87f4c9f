import importlib.util
import json
import sys

import pytest

from layers.errors import UsageError
from registry.earlier import renamed
from registry.records.record import load as load_snapshot
from registry.records.snapshot import snapshot
from registry.resolve import resolve
from tasks.storage.files import place


def test_new_names_exist_and_old_ones_do_not():
    for old, new in renamed.MODULES.items():
        assert importlib.util.find_spec(new)
        assert renamed.with_todays_names(f"{old}.Name") == f"{new}.Name"
        assert renamed.with_todays_names(f"{new}.Name") == f"{new}.Name"
    knobs = set().union(*(resolve(name).knobs() for name in ("gshard.DenseLm8B2x2", "mu.MuTiny")))
    assert not knobs & set(renamed.KNOBS)
    assert set(renamed.KNOBS.values()) <= knobs


def test_modules_of_today_keep_their_names():
    files = [
        file for root in ("layers", "tasks", "registry", "runners") for file in (renamed.FOLDER / root).rglob("*.py")
    ]
    names = [".".join(file.relative_to(renamed.FOLDER).with_suffix("").parts) for file in files]
    for name in (name for name in names if not name.endswith(".__init__")):
        assert renamed.with_todays_names(f"{name}.Name") == f"{name}.Name"


def test_a_record_with_old_names_is_todays_experiment(tmp_path, capsys):
    now = snapshot(resolve("tiny.StdlibTiny", ["TBPTT_LEN=64"]))
    text = json.dumps(now).replace("layers.attention.softmax", "layers.attention").replace("TBPTT_LEN", "UPDATE_LEN")
    file = tmp_path / "experiment.json"
    file.write_text(text)
    assert load_snapshot(place(str(tmp_path))) == json.loads(json.dumps(now))
    written = f"'{file}' was written with earlier knob names: UPDATE_LEN is now TBPTT_LEN.\n"
    assert capsys.readouterr().err == written


def test_two_knobs_of_an_old_record_are_one_today(tmp_path):
    now = json.loads(json.dumps(snapshot(resolve("tiny.StdlibTiny", ["RESIDUAL=parallel_shared_norm"]))))
    knob = now["knobs"]["RESIDUAL"]
    knobs = {name: value for name, value in now["knobs"].items() if name != "RESIDUAL"}
    old = {
        **now,
        "knobs": {**knobs, **{name: {**knob, "value": "True"} for name in ("PARALLEL_RESIDUAL", "SHARED_NORM")}},
    }
    old["overrides"] = ["PARALLEL_RESIDUAL=true", "SHARED_NORM=true"]
    (tmp_path / "experiment.json").write_text(json.dumps(old))
    assert load_snapshot(place(str(tmp_path))) == now


def test_classes_and_fields_of_old_records_have_todays_names():
    text = "task.microbatches task.optimizer.undecayed mixer.logit_cap mixer.head_slots tasks.inputs.pieces.PiecesInput"
    now = "task.gradient_accumulation task.optimizer.no_decay mixer.softcap mixer.padded_heads"
    assert renamed.with_todays_names(text) == f"{now} tasks.inputs.tbptt_chunks.TbpttInput"
    config = snapshot(resolve("gshard.DenseLm8B2x2"))["config"]
    fields = {path.rpartition(".")[2] for path in config}
    assert set(renamed.FIELDS.values()) <= fields
    assert not set(renamed.FIELDS) & fields


def test_an_old_field_is_refused_with_the_new_name():
    with pytest.raises(UsageError, match=r"field 'microbatches' in task\. .* renamed\. Set gradient_accumulation\.$"):
        resolve("tiny.StdlibTiny", ["task.microbatches=2"])


@pytest.mark.parametrize("setting", ["UPDATE_LEN=64", "MICROBATCHES=2"])
def test_an_old_knob_is_refused_with_the_new_name(setting):
    name = setting.partition("=")[0]
    with pytest.raises(UsageError, match=rf"'{name}'\. {name} was renamed\. Set {renamed.KNOBS[name]}\.$"):
        resolve("tiny.StdlibTiny", [setting])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("from registry.experiments.decoder import DecoderLm", r"Import registry\.templates\.decoder\.$"),
        ("from layers.attention import Attention", r"Import layers\.attention\.softmax\.$"),
        (
            "from registry.experiments.tiny import StdlibTiny\n\n\nclass Old(StdlibTiny):\n    D_BASE = 64",
            r"D_BASE was renamed\. Set BASE_WIDTH\.",
        ),
    ],
)
def test_a_module_of_a_user_with_old_names_gets_the_new_ones(tmp_path, monkeypatch, line, sentence):
    (tmp_path / "written_before.py").write_text(line + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "written_before", raising=False)
    with pytest.raises(UsageError, match=sentence):
        resolve("written_before.Old")


def test_modules_inside_a_package_with_the_name_of_an_old_module_are_unchanged():
    for name in ("layers.positions.rotary_scaling.Llama3Scaling", "layers.attention.vq.VQAttention"):
        assert renamed.with_todays_names(name) == name
    old = "layers.positions.LearnedPositions"
    assert renamed.with_todays_names(old) == "layers.positions.embeddings.LearnedPositions"
