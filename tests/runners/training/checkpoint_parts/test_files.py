"""Files of a checkpoint besides its arrays: damaged ones are found before orbax reads them."""

import json

import pytest

from layers.errors import UsageError, VortaroError
from runners.training.checkpoint_parts.files import is_listed, saved_state
from runners.training.checkpoints import Checkpoints
from tasks.train_step import TrainState

TIMES = {"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2}
STATE = {"tokens_seen": 5, "flops": 1e6, "input": {"next_batch": 2, "data": "a"}, "window_tokens": 0}


def checkpoint(folder, metrics: bytes | None, times: bytes):
    path = folder / "2"
    (path / "metrics").mkdir(parents=True)
    if metrics is not None:
        (path / "metrics" / "metrics").write_bytes(metrics)
    (path / "_CHECKPOINT_METADATA").write_bytes(times)
    return path


@pytest.mark.parametrize("metrics", [None, b'{"loss": 2.5}', b'{"loss": 2, "phase": 1}', b'{"loss": NaN}'])
def test_what_orbax_can_list(tmp_path, metrics):
    assert is_listed(checkpoint(tmp_path, metrics, json.dumps(TIMES).encode()))


@pytest.mark.parametrize(
    ("metrics", "times"),
    [
        (b"", json.dumps(TIMES)),
        (b"[]", json.dumps(TIMES)),
        (b"{}", json.dumps(TIMES)),
        (b'{"loss": "2"}', json.dumps(TIMES)),
        (b"\xff", json.dumps(TIMES)),
        (b"[" * 200_000, json.dumps(TIMES)),
        (b'{"loss": 2.5}', json.dumps(TIMES | {"init_timestamp_nsecs": 1.5})),
        (b'{"loss": 2.5}', json.dumps(TIMES | {"commit_timestamp_nsecs": 10**400})),
        (b'{"loss": 2.5}', "[" * 200_000),
    ],
)
def test_what_orbax_cannot_list(tmp_path, metrics, times):
    assert not is_listed(checkpoint(tmp_path, metrics, times.encode()))


def test_a_checkpoint_that_was_removed_meanwhile_is_not_damaged(tmp_path):
    assert is_listed(tmp_path / "2")


def test_a_store_that_cannot_be_reached_is_not_a_damaged_checkpoint(tmp_path, monkeypatch):
    path = checkpoint(tmp_path, b'{"loss": 2.5}', json.dumps(TIMES).encode())

    def fails(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(path), "read_text", fails)
    with pytest.raises(UsageError, match=r"Checkpoint '.*' cannot be read: .*Input/output error"):
        is_listed(path)


def written(folder, content: str):
    (folder / "extra").mkdir()
    (folder / "extra" / "metadata").write_text(content)
    return folder


@pytest.mark.parametrize("flops", [1e6, 10**21, None], ids=str)
def test_a_saved_state(tmp_path, flops):
    """FLOPs are counted in integers of any size."""
    state = STATE | {"flops": flops}
    assert saved_state(written(tmp_path, json.dumps(state))) == state


@pytest.mark.parametrize(
    "changes",
    [
        {"input": {}},
        {"input": {"next_batch": -1}},
        {"input": {"next_batch": {}}},
        {"input": {"next_batch": 1, "data": 5}},
        {"input": {"next_batch": 1, "hosts": [{}]}},
        {"tokens_seen": "5"},
        {"tokens_seen": 2**64},
        {"flops": -1.0},
        {"window_tokens": None},
        {"checksums": []},
    ],
)
def test_a_damaged_saved_state(tmp_path, changes):
    with pytest.raises(ValueError, match="the saved state"):
        saved_state(written(tmp_path, json.dumps(STATE | changes)))


@pytest.mark.parametrize("changes", [{"tokens_seen": 5.0}, {"input": {"next_batch": -1}}])
def test_what_could_not_be_restored_is_not_saved(tmp_path, changes):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(VortaroError, match=f"Step 1 cannot be saved: .*{next(iter(changes))}"):
        checkpoints.save(1, TrainState(*[()] * 7), STATE | changes, None)
    checkpoints.close()
    assert checkpoints.steps() == []
