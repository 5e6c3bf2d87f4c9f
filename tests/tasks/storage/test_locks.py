"""Locks between processes; two open files replace two processes."""

import errno
import fcntl

import pytest

from tasks.storage.locks import locked


def test_one_holder_at_a_time(tmp_path):
    file = tmp_path / ".lock"
    with locked(file, wait=False):
        with pytest.raises(BlockingIOError), locked(file, wait=False):
            pass
    with locked(file, wait=False), locked(tmp_path / "other", wait=True):
        pass


def test_a_file_system_without_locks_warns(tmp_path, monkeypatch, capsys):
    def refuses(stream, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with locked(tmp_path / ".lock", wait=False):
        message = f"'{tmp_path}' cannot be locked, as its file system has no locks (No locks available). "
        assert capsys.readouterr().out == f"{message}Start no other run in it.\n"


def test_errors_inside_pass(tmp_path):
    with pytest.raises(OSError, match="mine"), locked(tmp_path / ".lock", wait=True):
        raise OSError("mine")
    with pytest.raises(FileNotFoundError), locked(tmp_path / "missing" / ".lock", wait=True):
        pass
