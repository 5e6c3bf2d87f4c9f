"""Titles of runs and names of their files."""

from pathlib import Path

import pytest

from registry.runs_pages.titles import file_names, full_name, titles


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["/runs/a"], ["a"]),
        (["/runs/a", "/runs/b"], ["a", "b"]),
        (["/runs/sweepA/seed1", "/runs/sweepB/seed1"], ["sweepA/seed1", "sweepB/seed1"]),
        (["/runs/a", "/runs/a/b"], ["a", "a/b"]),
        (["gs://bucket/x/a", "gs://bucket/y/a"], ["x/a", "y/a"]),
        (["gs://bucket/a", "/runs/a"], ["gs://bucket/a", "/runs/a"]),
        ([], []),
    ],
)
def test_titles_are_paths_below_the_common_folder(names, shown):
    assert list(titles(names).values()) == shown


def test_names_of_folders_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert full_name(Path("a/../b")) == full_name(tmp_path / "b") == str(tmp_path / "b")


def test_names_of_files_differ_and_do_not_depend_on_other_runs():
    shown = ["a", "b", "a b", "a_b", "a/b", "a?b", "ü", "é", "x" * 300, "y" + "x" * 300, "C", "c"]
    names = file_names(shown)
    assert len({name.lower() for name in names.values()}) == len(shown)
    assert all(name.isascii() and len(name) < 120 for name in names.values())
    assert (names["a"], names["a_b"]) == ("a", "a_b")
    assert names["a/b"].startswith("a_b~")
    assert file_names(["a/b"]) == {"a/b": names["a/b"]}
    assert file_names([names["a b"]])[names["a b"]] != names["a b"]
