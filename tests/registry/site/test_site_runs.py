"""Runs in the site: their pages, links to them, what the server refreshes."""

import threading

from registry.site import serve
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
