"""The table of planned experiments: rows of experiments whose plans are not on this machine stay."""

import re

from benchmarks import plans


def test_rows_without_a_plan_stay(tmp_path, monkeypatch, capsys):
    text = plans.PAGE.read_text()
    page = tmp_path / "plans.md"
    page.write_text(text)
    monkeypatch.setattr(plans, "PAGE", page)
    monkeypatch.setattr(plans, "FOLDER", tmp_path)
    assert plans.main(["no.Such*"]) == 0
    assert page.read_text() == text
    assert text.count("| v5p:") > 5
    assert re.search(r"^\d+ plans of \d+ experiments in", capsys.readouterr().out)
