"""Run folders: what may change from start to start, and what each start adds to experiment.json."""

import json

import pytest

from layers.errors import UsageError
from registry.records.snapshot import stored_configs
from registry.resolve import resolve
from runners.session import Session
from runners.training.history import Start, parent_run, record_start
from runners.training.workdir import open_workdir

MESH = {"data": 1, "model": 1}


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    """Weight tables take most of the time, and nothing here depends on them."""
    totals = dict.fromkeys(("parameters", "bytes", "bytes_per_device"), 0)
    summary = lambda experiment, mesh: {"mesh": dict(mesh), "weights": [], "totals": totals}
    monkeypatch.setattr("registry.records.snapshot.weight_summary", summary)


def opened(folder, *sets, name="tiny.StdlibTiny", **options):
    experiment = resolve(name, sets, smoke=True)
    return open_workdir(str(folder), experiment, MESH, **options)


def record(folder):
    return json.loads((folder / "experiment.json").read_text())


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (["SCHEDULE=constant"], ["SCHEDULE=constant", "LOG_EVERY=7"], "LOG_EVERY = 7 (was 5)."),
        ([], ["SAVE_EVERY=7", "EVAL_EVERY=none"], "EVAL_EVERY = None (was 10), SAVE_EVERY = 7 (was 10)."),
        (
            ["EVAL_LIMIT=2", "EVAL_TASKS=a"],
            ["EVAL_TASKS=a,b"],
            "EVAL_TASKS = ('a', 'b') (was ('a',)), EVAL_LIMIT = None (was 2).",
        ),
        (["EVAL_TASKS=a"], [], "EVAL_TASKS = () (was ('a',))."),
        ([], ["train.log_every=7", "train.keep_last=3", "train.keep_best=0"], None),
        ([], ["train.num_steps=60"], None),
        (["SCHEDULE=constant"], ["SCHEDULE=constant", "NUM_STEPS=60"], "NUM_STEPS = 60 (was 30)."),
        (["DECAY_STEPS=20"], ["DECAY_STEPS=20", "NUM_STEPS=60"], "NUM_STEPS = 60 (was 30)."),
        ([], ["NUM_STEPS=60"], "NUM_STEPS = 60 (was 30), task.optimizer.schedule.decay_steps = 60 (was 30)."),
        ([], [], None),
    ],
)
def test_cadence_and_length_may_change(tmp_path, capsys, before, now, message):
    opened(tmp_path, *before)
    assert capsys.readouterr().out == ""
    opened(tmp_path, *now, record=False)
    assert capsys.readouterr().out == "", "of interest to training alone"
    opened(tmp_path, *now)
    assert capsys.readouterr().out == (f"Changed since the last start: {message}\n" if message else "")
    written = record(tmp_path)
    assert written["overrides"] == now
    experiment = resolve("tiny.StdlibTiny", now, smoke=True)
    assert stored_configs(written)["train"] == experiment.Train()
    opened(tmp_path, *before)
    assert record(tmp_path)["overrides"] == before


@pytest.mark.parametrize(
    "now",
    [
        ["LEARNING_RATE=1"],
        ["WARMUP_STEPS=7"],
        ["DECAY_STEPS=60"],
        ["NUM_STEPS=60", "END_FACTOR=0.5"],
        ["task.optimizer.schedule.decay_steps=60"],
        ["NUM_STEPS=60", "task.optimizer.schedule.decay_steps=70"],
        ["NUM_STEPS=60", "BATCH_SIZE=4"],
    ],
)
def test_what_is_learned_may_not(tmp_path, capsys, now):
    opened(tmp_path)
    with pytest.raises(UsageError, match="this experiment with other settings"):
        opened(tmp_path, *now)
    assert "Config fields that differ" in capsys.readouterr().out
    assert record(tmp_path)["overrides"] == []
    opened(tmp_path, *now, allow_changes=True)
    assert record(tmp_path)["overrides"] == now


def test_a_record_from_before_a_knob_and_a_field_existed_resumes(tmp_path):
    opened(tmp_path)
    written = record(tmp_path)
    del written["knobs"]["QK_NORM"], written["config"]["task.model.stack.block.mixer.qk_norm"]
    (tmp_path / "experiment.json").write_text(json.dumps(written))
    opened(tmp_path)
    with pytest.raises(UsageError, match="this experiment with other settings"):
        opened(tmp_path, "QK_NORM=rms")


def test_each_start_is_added_and_the_first_record_stays(tmp_path):
    first, second = Start(("python", "first"), ("tests.support.references.models",)), Start(("python", "second"))
    session = Session(resolve("tiny.StdlibTiny", ["DATA=synthetic"], smoke=True))
    open_workdir(str(tmp_path), session.experiment, MESH, start=first)
    made = record(tmp_path)
    assert (made["command"], made["parent"], made["starts"]) == (["python", "first"], None, [])
    assert set(made["code"]) >= {"vortaro"}
    assert {"python", "jax", "absl-py"} <= set(made["versions"])
    parent = {"workdir": "runs/other", "step": 7}
    record_start(tmp_path, session, first, step=0, parent=parent)
    open_workdir(str(tmp_path), session.experiment, MESH, start=second, parent={"workdir": "another"})
    record_start(tmp_path, session, second, step=5)
    after = record(tmp_path)
    assert {key: after[key] for key in ("command", "code", "versions")} == {
        key: made[key] for key in ("command", "code", "versions")
    }
    assert after["parent"] == parent
    assert [(start["step"], start["command"]) for start in after["starts"]] == [
        (0, ["python", "first"]),
        (5, ["python", "second"]),
    ]
    for start in after["starts"]:
        assert start["overrides"] == ["DATA=synthetic"]
        assert start["data"]["train.input"] == {"is": session.train.input.describe(), "fingerprint": None}
        assert set(start["data"]) == {"train.input", "test.inputs.validation"}
        assert start["devices"]["count"] == 8
        assert start["code"]["vortaro"]["digest"] == made["code"]["vortaro"]["digest"]


def test_a_folder_of_an_older_version_gets_no_invented_past(tmp_path):
    opened(tmp_path, start=Start(("python",)))
    old = {key: value for key, value in record(tmp_path).items() if key not in ("code", "command", "parent", "starts")}
    (tmp_path / "experiment.json").write_text(json.dumps({**old, "versions": {"jax": "0.1"}}))
    assert parent_run(str(tmp_path), 3)["code"] is None
    session = Session(resolve("tiny.StdlibTiny", ["DATA=synthetic"], smoke=True))
    opened(tmp_path, "DATA=synthetic", allow_changes=True, start=Start(("python", "now")))
    record_start(tmp_path, session, Start(("python", "now")), step=9)
    after = record(tmp_path)
    assert after["versions"] == {"jax": "0.1"}
    assert not {"code", "command", "parent"} & set(after)
    assert [start["step"] for start in after["starts"]] == [9]


def test_a_parent_is_known_by_its_config_and_code(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    opened(one, start=Start(("python",)))
    opened(two, "LEARNING_RATE=0.5", start=Start(("python",)))
    parents = [parent_run(str(folder), 4) for folder in (one, two)]
    assert [(p["workdir"], p["step"], p["experiment"]) for p in parents] == [
        (str(folder), 4, "tiny.StdlibTiny") for folder in (one, two)
    ]
    assert parents[0]["code"] == record(one)["code"]
    assert parents[0]["fingerprint"] != parents[1]["fingerprint"] == parent_run(str(two), 5)["fingerprint"]
    assert parent_run(str(tmp_path / "no"), 1) == {"workdir": str(tmp_path / "no"), "step": 1}
