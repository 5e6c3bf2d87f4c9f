"""Totals from the cache are those of the code as it is now, or none."""

import json

import pytest

from registry.tool import totals
from registry.tool.golden import FOLDER
from registry.tool.totals import TotalsCache
from registry.tool.verbs import main

TOTALS = {
    "parameters": 3,
    "bytes": 12,
    "bytes_per_device": 6,
    "gradient_bytes_per_device": 6,
    "optimizer_bytes_per_device": 12,
}
NAME, PATTERN = "tiny.StdlibTiny", "tiny.StdlibTin[y]"


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vortaro" / "totals.json"


def computed(name=NAME, **more):
    """What a command does that needs the totals of an experiment; how often it computes them."""
    calls = []
    cache = TotalsCache(lambda name: calls.append(name) or TOTALS, **more)
    assert cache.of(name) == cache.of(name) == TOTALS
    cache.save()
    return len(calls)


def test_totals_are_computed_once_for_each_state_of_the_source(monkeypatch, tmp_path):
    root = tmp_path / "code"
    for package in totals.PACKAGES:
        (root / package / "deep").mkdir(parents=True)
        (root / package / "deep" / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(totals, "FOLDER", root)
    assert [computed(), computed()] == [1, 0]
    before = totals.source_key()
    for package in totals.PACKAGES:
        (root / package / "deep" / "module.py").write_text("x = 2\n")
        assert TotalsCache(lambda name: {}).known(NAME) is None
        assert [computed(), computed()] == [1, 0]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "another")
    assert computed() == 1
    for package in totals.PACKAGES:
        (root / package / "deep" / "module.py").write_text("x = 1\n")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(totals, "FOLDER", root)
    assert totals.source_key() == before
    assert computed() == 0, "totals of a few versions stay"


def test_the_file_does_not_grow_without_end(monkeypatch, file):
    for number in range(totals.KEPT + 3):
        monkeypatch.setattr(totals, "source_key", lambda number=number: str(number))
        assert computed() == 1
    assert list(json.loads(file.read_text())) == [str(number) for number in range(3, totals.KEPT + 3)]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '"x"', '{"KEY": 1}', '{"KEY": {"tiny.StdlibTiny": {"parameters": "3"}}}', b"\xff\xfe"],
)
def test_a_damaged_file_is_replaced(file, content):
    file.parent.mkdir()
    content = content.replace("KEY", totals.source_key()) if isinstance(content, str) else content
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert TotalsCache(lambda name: TOTALS).known(NAME) is None
    assert [computed(), computed()] == [1, 0]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "vortaro").write_text("a file where the folder should be")
    assert [computed(), computed()] == [1, 1]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert computed() == 1


def test_what_is_not_as_registered_or_not_ours_is_not_kept(file):
    assert [computed(is_stored=False), computed("my_models.Wide")] == [1, 1]
    assert not file.exists()


def test_two_processes_add_to_one_file():
    first, second = TotalsCache(lambda name: TOTALS), TotalsCache(lambda name: TOTALS)
    first.of(NAME), second.of("tiny.StdlibSmall")
    first.save(), second.save()
    assert [computed(), computed("tiny.StdlibSmall")] == [0, 0]


def test_list_shows_totals_after_a_condition_has_computed_them(capsys):
    assert main(["list", PATTERN]) == 0
    assert "--where 'params>0'` computes and caches them." in capsys.readouterr().out
    assert main(["list", PATTERN, "--where", "devices==1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["parameters"], row["bytes"]) == (None, None), "devices follow from the mesh"
    assert main(["list", PATTERN, "--where", "params>0"]) == 0
    capsys.readouterr()
    assert main(["list", PATTERN, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    golden = json.loads((FOLDER / f"{NAME}.json").read_text())["totals"]
    assert (row["parameters"], row["bytes"]) == (golden["parameters"], golden["bytes"])
