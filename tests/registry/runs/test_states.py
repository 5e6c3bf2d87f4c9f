"""States of run folders, and the search for them."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time

import pytest

from layers.errors import UsageError
from registry.runs.folders import find
from registry.runs.run import Run, read
from tasks.storage.locks import is_locked, locked
from tests.conftest import ROOT
from tests.support.run_folders import STARTED, lines_of, record_of, write_run

OLD = {"started": STARTED, "step": 0, "command": ["python"]}  # earlier versions do not record the end
ENDED = {"at": "2026-01-01T00:01:00+00:00", "step": 50}


@pytest.mark.parametrize(
    ("state", "starts", "saved"),
    [
        ("finished", [{**OLD, "ended": {**ENDED, "reason": "finished"}}], 0),
        ("stopped", [{**OLD, "ended": {**ENDED, "reason": "SIGTERM"}}], 50),
        ("dead", [{**OLD, "ended": None}], 50),  # killed, although nothing is lost
        ("dead", [{**OLD, "ended": {**ENDED, "reason": "SIGTERM"}}, {**OLD, "ended": None}], 50),
        ("finished", [OLD], 100),
        ("stopped", [OLD], 50),
        ("dead", [OLD], 20),
        ("dead", [OLD], 0),
        ("new", [], 0),
    ],
)
def test_state(tmp_path, state, starts, saved):
    run = Run(write_run(tmp_path / "a", record_of({}, starts=starts), lines_of({50: 2.0}), saved))
    assert run.state == state


def test_a_locked_folder_is_running_and_its_file_is_not_changed(tmp_path):
    folder = write_run(tmp_path / "a", record_of({}), lines_of({50: 2.0}))
    (folder / ".lock").write_text("")
    assert Run(folder).state == "finished"
    with locked(folder / ".lock", wait=False):
        assert Run(folder).state == "running"
    assert not is_locked(folder / ".lock")
    assert not is_locked(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_another_process_that_looks_does_not_keep_a_run_from_its_lock(tmp_path):
    file = tmp_path / ".lock"
    file.write_text("")
    looking = f"""
import fcntl, time
with open({str(file)!r}) as stream:
    fcntl.flock(stream, fcntl.LOCK_SH)
    print(flush=True)
    time.sleep(0.02)
"""
    with subprocess.Popen([sys.executable, "-c", looking], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with locked(file, wait=False):
            assert is_locked(file)


def test_seconds_of_all_starts(tmp_path):
    first = {**OLD, "ended": {**ENDED, "reason": "SIGTERM"}}  # one minute
    second = {**OLD, "started": "2026-01-02T00:00:00+00:00"}
    second["ended"] = {**ENDED, "at": "2026-01-02T00:00:30+00:00", "reason": "died"}
    third = {**OLD, "started": "2026-01-02T00:00:30+00:00"}
    third["ended"] = {**ENDED, "at": "2026-01-02T00:01:00+00:00", "reason": "finished"}
    assert Run(write_run(tmp_path / "a", record_of({}, starts=[first, second, third]))).seconds == 60 + 30 + 30
    old = Run(write_run(tmp_path / "b", record_of({}, starts=[OLD, third])))
    assert old.seconds is None, "the time between a crash and the next start is not that of a process"


@pytest.mark.parametrize(("seconds", "state"), [(10, "running"), (10_000, "dead")])
def test_on_a_file_system_without_locks_recent_metrics_are_those_of_a_running_run(
    tmp_path, monkeypatch, seconds, state
):
    def without_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    folder = write_run(tmp_path / "a", record_of({}, starts=[{**OLD, "ended": None}]), lines_of({50: 2.0}))
    (folder / ".lock").write_text("")
    changed = time.time() - seconds
    os.utime(folder / "metrics.jsonl", (changed, changed))
    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert is_locked(folder / ".lock") is None
    assert Run(folder).state == state


def test_runs_are_found_below_folders_and_by_patterns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/b", "runs/a", "runs/deep/er/a", "runs/other/b", "elsewhere/c"):
        write_run(tmp_path / name, record_of({}))
    (tmp_path / "runs" / "half" / "checkpoints").mkdir(parents=True)  # killed before its record was written
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "a" / "samples").mkdir()
    names = ["runs/a", "runs/b", "runs/deep/er/a", "runs/half", "runs/other/b"]
    assert [str(folder) for folder in find([])] == names
    assert [str(folder) for folder in find(["runs"])] == names
    assert [str(folder) for folder in find(["runs/*", "./runs/a"])] == names
    assert [str(folder) for folder in find(["*/[bc]"])] == ["elsewhere/c", "runs/b"]
    write_run(tmp_path / "more/[x]", record_of({}))
    assert [str(folder) for folder in find(["more/[x]"])] == ["more/[x]"]
    with pytest.raises(UsageError, match=r"No run folder matches 'nowhere/\*'"):
        find(["runs", "nowhere/*"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "has no experiment.json: its run was interrupted before it began"),
        ("{", "cannot be read as a run: "),
        ("[]", "cannot be read as a run: it does not contain an experiment"),
        (json.dumps({"experiment": "tiny.StdlibTiny"}), "it does not contain an experiment"),
        (json.dumps({**record_of({}), "starts": [{}]}), "cannot be read as a run: "),
        (json.dumps({**record_of({}), "knobs": []}), "cannot be read as a run: "),
    ],
)
def test_a_broken_record(tmp_path, content, problem):
    folder = tmp_path / "a"
    (folder / "checkpoints").mkdir(parents=True)
    if content is not None:
        (folder / "experiment.json").write_text(content)
    (run,) = read([str(folder)])
    assert run.state == "broken"
    assert problem in (run.problem or "")
