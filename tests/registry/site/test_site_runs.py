"""Runs in the site: their pages, links to them, what the server refreshes."""

import threading

import pytest

from registry.site import collect, serve, write
from registry.site.records import record
from registry.tool.command_line import main
from tests.support.runs_with_curves import run_folder


def test_runs_are_pages_of_the_site(tmp_path, capsys):
    run_folder(tmp_path / "runs" / "a")
    assert main(["site", f"--out={tmp_path / 'site'}", f"--runs={tmp_path}/runs/*", "tiny.StdlibTiny"]) == 0
    assert f"1 run: {tmp_path / 'site' / 'runs.html'}" in capsys.readouterr().out
    for name in ("index.html", "compare.html", "runs.html"):
        assert 'href="./runs.html"' in (tmp_path / "site" / name).read_text().replace('"runs.html"', '"./runs.html"')
    assert '"../runs.html"' in (tmp_path / "site" / "experiments" / "tiny.StdlibTiny.html").read_text()
    assert '"../index.html"' in (tmp_path / "site" / "runs" / "a.html").read_text()


def test_a_site_without_runs_has_no_link_to_them(tmp_path):
    assert main(["site", f"--out={tmp_path / 'site'}", "tiny.StdlibTiny"]) == 0
    assert "runs.html" not in (tmp_path / "site" / "index.html").read_text()


def test_a_pattern_without_runs_is_an_error(tmp_path, capsys):
    assert main(["site", f"--out={tmp_path / 'site'}", f"--runs={tmp_path}/none/*", "tiny.StdlibTiny"]) == 2
    assert "No run folder matches" in capsys.readouterr().err


def test_the_server_refreshes_pages_also_after_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve, "REFRESH_SECONDS", 0.01)
    calls, enough = [], threading.Event()

    def refresh():
        calls.append(1)
        if len(calls) == 5:
            enough.set()
        if len(calls) < 4:
            raise OSError("a run folder was removed")

    threading.Thread(target=serve.serve, args=(tmp_path, 0, refresh), daemon=True).start()
    assert enough.wait(20)
    assert capsys.readouterr().err.count("The pages of runs are not up to date: a run folder was removed") == 1


def test_a_site_without_runs_removes_the_pages_of_an_earlier_one(tmp_path):
    run_folder(tmp_path / "runs" / "a")
    site = tmp_path / "site"
    assert main(["site", f"--out={site}", f"--runs={tmp_path}/runs/*", "tiny.StdlibTiny"]) == 0
    (site / "runs" / "notes.html").write_text("mine")
    assert main(["site", f"--out={site}", "tiny.StdlibTiny"]) == 0
    assert not (site / "runs.html").exists()
    assert [file.name for file in (site / "runs").iterdir()] == ["notes.html"]
    (site / "runs.html").write_text("mine")
    assert main(["site", f"--out={site}", "tiny.StdlibTiny"]) == 0
    assert (site / "runs.html").exists(), "this file is not of the registry"


def test_the_folder_of_pages_of_runs_is_removed_if_it_is_empty(tmp_path):
    run_folder(tmp_path / "runs" / "a")
    site = tmp_path / "site"
    assert main(["site", f"--out={site}", f"--runs={tmp_path}/runs/*", "tiny.StdlibTiny"]) == 0
    assert main(["site", f"--out={site}", "tiny.StdlibTiny"]) == 0
    assert not (site / "runs").exists()


@pytest.mark.parametrize("foreign", ["index.html", "runs/a/experiment.json"])
def test_a_folder_with_other_files_is_refused(tmp_path, monkeypatch, capsys, foreign):
    monkeypatch.chdir(tmp_path)
    (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / foreign).write_text("{}")
    monkeypatch.setattr(collect, "records", lambda *_: pytest.fail("it builds before it checks"))
    before = sorted(tmp_path.rglob("*"))
    assert main(["site", "--out=.", "tiny.StdlibTiny"]) == 2
    expected = "The folder '.' is not empty and not a site of the registry. Choose another --out, or empty it."
    assert expected in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_site_can_be_written_again(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(write, "write_assets", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write.write_site([record("tiny.StdlibTiny")], tmp_path / "site")
    assert main(["site", f"--out={tmp_path / 'site'}", "tiny.StdlibTiny"]) == 0
