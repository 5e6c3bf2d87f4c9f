"""Files that are complete or absent."""

import os
import stat
import threading

import pytest

from layers.errors import UsageError
from tasks.storage.files import reached, whole_file, write_whole


def test_a_reader_finds_the_old_or_the_new_content(tmp_path):
    file = tmp_path / "file"
    write_whole(file, "old")
    with whole_file(file) as part:
        part.write_text("ne")
        assert file.read_text() == "old"
        part.write_text("new")
        assert {path.name.startswith(".") for path in tmp_path.iterdir()} == {True, False}
    assert file.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_the_old_content_alone(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", "old")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "file") as part:
        part.write_text(str(1 / 0))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_threads_write_one_file(tmp_path):
    names, meet = set(), threading.Barrier(4)

    def work():
        with whole_file(tmp_path / "file") as part:
            names.add(part)
            meet.wait(60)
            part.write_text("content")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 4
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_modes_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


def test_errors_of_a_store_name_the_place():
    with pytest.raises(UsageError, match=r"^'gs://b/x' cannot be written: No\.$"), reached("gs://b/x", "written"):
        raise OSError("No")
    with pytest.raises(UsageError, match=r"^The token cache 'gs://b/x' cannot be reached: No\.$"):
        with reached("gs://b/x", kind="The token cache"):
            raise OSError("No")
