"""Totals of Vortaro's own experiments are those of their golden files; others are computed."""

import json

from registry import index
from registry.resolve import resolve
from registry.tool import golden, totals
from registry.tool.command_line import main
from registry.tool.totals import TotalsByName

TOTALS = {
    "parameters": 3,
    "bytes": 12,
    "bytes_per_device": 6,
    "gradient_bytes_per_device": 6,
    "optimizer_bytes_per_device": 12,
}
NAME, PATTERN = "tiny.StdlibTiny", "tiny.StdlibTin[y]"


def computed(name, **more):
    """Returns how often the totals of an experiment are computed when they are requested twice."""
    calls = []
    by_name = TotalsByName(lambda name: calls.append(name) or TOTALS, **more)
    assert by_name.of(name) == by_name.of(name) == by_name.known(name)
    return len(calls)


def test_the_file_has_the_totals_of_all_golden_files():
    read = lambda name: json.loads((golden.FOLDER / f"{name}.json").read_text())["totals"]
    expected = {name: read(name) for name in sorted(index.entries())}
    assert totals.stored() == expected
    assert list(totals.stored()) == sorted(index.entries())


def test_only_totals_that_the_file_lacks_are_computed():
    assert [computed(NAME), computed("my_models.Wide"), computed(NAME, is_registered=False)] == [0, 1, 1]


def test_an_update_of_golden_files_writes_the_totals(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "FOLDER", tmp_path / "golden")
    monkeypatch.setattr(totals, "FILE", tmp_path / "totals.json")
    assert totals.stored() == {}
    totals.store("tiny.StdlibSmall", TOTALS)
    golden.compare(resolve(NAME), update=True, sections=("totals",))
    golden_totals = json.loads((tmp_path / "golden" / f"{NAME}.json").read_text())["totals"]
    assert totals.stored() == {"tiny.StdlibSmall": TOTALS, NAME: golden_totals}
    totals.store("gone.Experiment", TOTALS)
    assert set(totals.stored()) == {"tiny.StdlibSmall", NAME}, "only those of registered experiments"


def test_list_shows_totals_of_own_experiments_at_once_and_of_others_on_request(capsys, monkeypatch):
    assert main(["list", PATTERN, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["parameters"], row["bytes"]) == tuple(totals.stored()[NAME][key] for key in ("parameters", "bytes"))
    monkeypatch.setattr(totals, "stored", dict)
    assert main(["list", PATTERN]) == 0
    assert "`python -m registry list --where 'params>0'` shows them." in capsys.readouterr().out
    assert main(["list", PATTERN, "--where", "devices==1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["parameters"] is None, "devices follow from the mesh"
    assert main(["list", PATTERN, "--where", "params>0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [row]
