"""Who trains in a folder on a store: leases of a store in memory, by a clock that does not wait."""

import functools
import json
import os
import threading
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from layers.errors import UsageError
from tasks.storage import lease
from tests.support.clocks import FakeClock

FOLDER = Path("/bucket/run")
FAR = {"host": "far", "pid": 1, "space": "far", "renewals": 0, "released": False}


@pytest.fixture
def store(monkeypatch):
    """A file system in memory, which leases go to."""
    system = MemoryFileSystem()
    system.store, system.pseudo_dirs = {}, [""]  # those of the class are shared by all
    monkeypatch.setattr(lease, "file_system", lambda name: (system, os.fspath(name)))
    return system


@pytest.fixture
def clock():
    return FakeClock()


def leave(store, number, **word):
    """Has another process write its lease."""
    store.pipe_file(f"{FOLDER}/lease/{number:08}", json.dumps(FAR | word).encode())


def acquire(clock):
    one = lease._Lease(FOLDER, clock)
    one.take()
    return one


def leases(store):
    return [int(name.rpartition("/")[2]) for name in store.ls(f"{FOLDER}/lease", detail=False)]


def test_the_first_and_the_next_one_wait_for_nothing(store, clock):
    acquire(clock).write(released=True)
    assert leases(store) == [1]
    acquire(clock)
    assert (leases(store), clock.now()) == ([2], 0)


def test_who_renews_is_left_alone(store, clock, capsys):
    leave(store, 3)
    for number in range(1, 10):
        clock.at(lease.RENEW_SECONDS * number, functools.partial(leave, store, 3, renewals=number))
    with pytest.raises(UsageError, match=r"Another process trains in '/bucket/run' \(far, process 1\)"):
        acquire(clock)
    assert clock.now() < 2 * lease.RENEW_SECONDS
    assert "'/bucket/run' is leased by far (process 1). Waiting for up to 60 s" in capsys.readouterr().out


def test_who_is_silent_is_taken_over_and_who_lets_go_at_once(store, clock):
    leave(store, 3)
    acquire(clock)
    assert leases(store) == [4]
    assert lease.DEAD_SECONDS <= clock.now() <= lease.DEAD_SECONDS + 1
    leave(store, 7)
    clock.at(clock.now() + 5, functools.partial(leave, store, 7, released=True))
    before = clock.now()
    acquire(clock)
    assert leases(store) == [8]
    assert clock.now() - before < 7


def test_a_process_of_this_machine_is_known_to_be_dead(store, clock, monkeypatch, capsys):
    monkeypatch.setattr(lease, "_process_space", lambda: "here")
    leave(store, 1, space="here", pid=12345)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    clock.at(1, functools.partial(leave, store, 1, space="here", pid=12345, renewals=1))
    with pytest.raises(UsageError, match="Another process trains in"):
        acquire(clock)
    capsys.readouterr()

    def gone(pid, number):
        assert (pid, number) == (12345, 0)
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    before = clock.now()
    acquire(clock)
    assert (leases(store), clock.now()) == ([2], before)
    assert "waiting" not in capsys.readouterr().out


def test_only_one_of_two_gets_the_next(store, clock, monkeypatch):
    leave(store, 1, released=True)
    write = store.pipe_file

    def late(path, value, mode="overwrite"):
        if mode == "create":
            write(path, json.dumps(FAR).encode())  # the other one was quicker
        write(path, value, mode=mode)

    monkeypatch.setattr(store, "pipe_file", late)
    with pytest.raises(UsageError, match="far, process 1"):
        acquire(clock)


def test_the_holder_renews_and_ends_once_it_was_taken_over(store, clock, monkeypatch, capsys):
    one, ended = acquire(clock), threading.Event()
    seen = []
    read = lambda: seen.append(json.loads(store.cat_file(f"{FOLDER}/lease/00000001"))["renewals"])
    for number in range(1, 4):
        clock.at(lease.RENEW_SECONDS * number + 1, read)

    def unreachable(*arguments, **given):
        raise OSError("the store does not answer")

    clock.at(32, lambda: monkeypatch.setattr(store, "ls", unreachable))  # for a while, which ends nothing
    clock.at(52, monkeypatch.undo)
    clock.at(75, functools.partial(leave, store, 2))

    def leave_process(code):
        raise SystemExit(code)

    clock.at(70, lambda: monkeypatch.setattr(os, "_exit", leave_process))
    with pytest.raises(SystemExit) as left:
        one.keep(ended)
    assert (left.value.code, clock.now()) == (1, 80)
    assert seen == [1, 2, 3]
    assert "Another process has taken over '/bucket/run'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b'{"host": "a"}', b'{"host": 1, "pid": -1}', b"\xff"])
def test_a_damaged_lease_has_a_sentence(content):
    with pytest.raises(UsageError, match=r"The lease 'a/00000007' cannot be read \(.*\)\. Remove it"):
        lease.holder_of(content, "a/00000007")
