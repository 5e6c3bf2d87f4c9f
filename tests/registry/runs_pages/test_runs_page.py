"""Pages of all runs: files, knobs that differ, names, what is written again when runs change."""

import json
import re
from pathlib import Path

import pytest

from registry.runs.run import Run
from registry.runs_pages.runs_page import RunPages, version, write_runs
from registry.runs_pages.titles import file_names
from tests.support.runs_with_curves import metrics, run_folder

LISTS = ("files.json", "version.json")


@pytest.fixture
def folders(tmp_path):
    """Two runs that differ in one knob."""
    runs = tmp_path / "all"
    return [run_folder(runs / "a", "MODEL_DIM=64"), run_folder(runs / "b", "MODEL_DIM=96", lines=metrics(60, 1.5))]


def test_files_and_table(tmp_path, folders):
    out = tmp_path / "out"
    write_runs(out, folders, {"Entries": "index.html", "Runs": "runs.html"})
    assert {file.name for file in (out / "runs").iterdir()} == {"a.html", "a.js", "b.html", "b.js", *LISTS}
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
    titles = [folder.name for folder in folders]
    write_runs(tmp_path / "out", folders)
    for file in (tmp_path / "out" / "runs.html", *(tmp_path / "out" / "runs").glob("*.html")):
        assert script not in file.read_text()
    page = (tmp_path / "out" / "runs.html").read_text()
    assert "&lt;script&gt;window.attacked" in page
    assert "<b>&" not in page
    assert (tmp_path / "out" / "runs" / f"{file_names(titles)[titles[1]]}.js").exists()


def test_runs_of_equal_names_have_their_path_as_title(tmp_path):
    runs = tmp_path / "all"
    folders = [run_folder(runs / sweep / "seed1") for sweep in ("sweepA", "sweepB")]
    pages = RunPages(tmp_path / "out")
    assert pages.write(folders) == ["sweepA/seed1", "sweepB/seed1"]
    page = (tmp_path / "out" / "runs.html").read_text()
    assert f'title="{folders[0]}">sweepA/seed1</a>' in page
    names = file_names(["sweepA/seed1", "sweepB/seed1"])
    own = (tmp_path / "out" / "runs" / f"{names['sweepA/seed1']}.html").read_text()
    assert "<h1>sweepA/seed1</h1>" in own
    assert f"<code>{folders[0]}</code>" in own
    assert pages.write([run_folder(runs / "sweep0" / "seed1"), *folders]) == ["sweep0/seed1"]


def test_a_folder_given_by_two_names_is_one_run(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "all" / "a")
    monkeypatch.chdir(tmp_path)
    assert RunPages(tmp_path / "out").write([folder, Path("all/a")]) == ["a"]


def test_the_row_has_the_best_and_the_last_validation(tmp_path):
    later = {"step": 70, "split": "validation", "loss": 9.0}
    earlier = {"step": 5, "split": "validation", "loss": 8.0}  # measured after training
    unknown = {"step": 65, "split": "validation", "loss": float("nan")}
    folder = run_folder(tmp_path / "all" / "a", lines=[unknown, *metrics(60), later, earlier])
    pages = RunPages(tmp_path / "out")
    pages.write([folder])
    (row,) = pages.rows.values()
    run = Run(folder)
    best = f"{run.summary.best['loss']:.4f}"
    assert (row.cells["loss"].text, row.cells["best loss"].text) == ("9.0000", best)


def test_the_version_of_a_run_reads_no_file(tmp_path, monkeypatch):
    run = Run(run_folder(tmp_path / "all" / "a", changes={"starts": [{"started": ""}]}))
    for method in ("read_text", "read_bytes"):
        monkeypatch.setattr(Path, method, lambda *_, **__: pytest.fail("a file is read"))
    assert version(run)
