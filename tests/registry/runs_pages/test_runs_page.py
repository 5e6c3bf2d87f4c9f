"""Pages of all runs: files, knobs that differ, names, what is written again when runs change."""

import json
import re

import pytest

from registry.runs_pages.runs_page import RunPages, unique, write_runs
from tests.support.runs_with_curves import metrics, run_folder


@pytest.fixture
def folders(tmp_path):
    """Two runs that differ in one knob."""
    runs = tmp_path / "all"
    return [run_folder(runs / "a", "MODEL_DIM=64"), run_folder(runs / "b", "MODEL_DIM=96", lines=metrics(60, 1.5))]


def test_files_and_table(tmp_path, folders):
    out = tmp_path / "out"
    write_runs(out, folders, {"Entries": "index.html", "Runs": "runs.html"})
    assert {file.name for file in (out / "runs").iterdir()} == {"a.html", "a.js", "b.html", "b.js", "version.json"}
    page = (out / "runs.html").read_text()
    assert re.findall(r'class="knob" data-value="(\d+)"', page) == ["64", "96"]
    assert [text for text in re.findall(r'data-sort="([^"]+)"', page) if text.isupper()] == ["MODEL_DIM"]
    assert 'href="runs/a.html"' in page
    assert (out / "assets" / "plotly.min.js").exists()
    script = (out / "runs" / "a.js").read_text()
    assert script.startswith('(window.vortaroRuns ??= {})["a"] = {"axes":')
    own = (out / "runs" / "a.html").read_text()
    assert '<a href="../index.html">Entries</a>' in own
    assert 'src="../runs/a.js"' in own


def test_only_what_has_changed_is_written_again(tmp_path, folders):
    out, pages = tmp_path / "out", RunPages(tmp_path / "out")
    assert pages.write(folders) == ["a", "b"]
    versions = json.loads((out / "runs" / "version.json").read_text())
    times = {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    assert pages.write(folders) == []
    assert times == {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    with (folders[0] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 70, "split": "validation", "loss": 1.25}) + "\n")
    assert pages.write(folders) == ["a"]
    assert "1.2500" in (out / "runs.html").read_text()
    later = json.loads((out / "runs" / "version.json").read_text())
    assert (later["a"] == versions["a"], later["b"] == versions["b"]) == (False, True)
    assert times["b.js"] == (out / "runs" / "b.js").stat().st_mtime_ns


def test_runs_come_and_leave(tmp_path, folders):
    out, pages = tmp_path / "out", RunPages(tmp_path / "out")
    pages.write(folders[:1])
    assert pages.write(folders) == ["b"]
    assert pages.write(folders[1:]) == []
    assert not (out / "runs" / "a.html").exists()
    assert not (out / "runs" / "a.js").exists()
    assert 'data-run="a"' not in (out / "runs.html").read_text()
    pages.write([])
    assert "No runs." in (out / "runs.html").read_text()


def test_broken_runs_are_reported(tmp_path, folders):
    broken = tmp_path / "all" / "c"
    broken.mkdir()
    (broken / "metrics.jsonl").write_text('{"step": 1, "spl')
    write_runs(tmp_path / "out", [*folders, broken])
    page = (tmp_path / "out" / "runs.html").read_text()
    assert "has no experiment.json" in page
    assert 'data-run="c"' not in page


def test_texts_are_escaped(tmp_path):
    script = "<script>window.attacked = 1</script>"
    record = {"knobs": {"MODEL_DIM": {"value": script, "owner": "x"}}, "experiment": f"a.{script}"}
    folders = [run_folder(tmp_path / "all" / "a"), run_folder(tmp_path / "all" / "<b>&'\"", changes=record)]
    write_runs(tmp_path / "out", folders)
    for file in (tmp_path / "out" / "runs.html", *(tmp_path / "out" / "runs").glob("*.html")):
        assert script not in file.read_text()
    page = (tmp_path / "out" / "runs.html").read_text()
    assert "&lt;script&gt;window.attacked" in page
    assert "<b>&" not in page
    assert (tmp_path / "out" / "runs" / "_b____.js").exists()


def test_names_are_unique_as_files():
    assert unique(["a", "b", "a", "A", "a b", "a_b", "a-2"]) == ["a", "b", "a-2", "A-3", "a b", "a_b-2", "a-2-2"]
