"""The verb `site`: its files, cached records, plans, errors."""

import json
import os
import re

import pytest

from registry.experiment import REGISTRY
from registry.index import entries
from registry.records.snapshot import snapshot
from registry.resolve import resolve
from registry.site import collect
from registry.site.pages import SIZES, code_marked, entry_data, row, shared_knobs
from registry.site.records import kinds, record
from registry.site.serve import HOST, server
from registry.site.write import write_site

MODULE = '''
"""A user's module."""
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny


@register
class Mine(StdlibTiny):
    """My model."""

    NUM_LAYERS = 2


@register
class Broken(StdlibTiny):
    """Cannot be built."""

    NUM_HEADS = 3
'''


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vortaro" / "site"


@pytest.fixture
def user_module(tmp_path):
    (tmp_path / "site_models.py").write_text(MODULE)
    yield
    for key in [key for key in REGISTRY if key.startswith("site_models.")]:
        del REGISTRY[key]


def test_a_pattern_selects_what_is_written(inside, tmp_path):
    done = inside("registry", "site", "--out=pages", "tiny.*")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"5 experiments, \d+ files, [\d.]+ MiB, [\d.]+ s\nWritten: pages/index\.html\n", done.stdout)
    names = {file.name for file in (tmp_path / "pages" / "experiments").iterdir()}
    assert names == {f"{key}.html" for key in entries() if key.startswith("tiny.")}
    inside("registry", "site", "--out=pages", "tiny.stdlibtin[y]")
    assert [file.name for file in (tmp_path / "pages" / "experiments").iterdir()] == ["tiny.StdlibTiny.html"]
    assert [file.name for file in (tmp_path / "pages" / "data").glob("tiny*")] == ["tiny.StdlibTiny.js"]


def test_an_imported_module_and_an_entry_that_cannot_be_built(inside, tmp_path, user_module):
    done = inside("registry", "site", "--import=site_models", "site_models")
    assert done.returncode == 2
    assert done.stderr.startswith("registry: site_models.Broken has no page: ")
    assert "NUM_HEADS" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    page = (tmp_path / "site" / "experiments" / "site_models.Mine.html").read_text()
    assert "My model." in page
    assert "site_models.py:" in page
    assert "NUM_HEADS" in (tmp_path / "site" / "experiments" / "site_models.Broken.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_family"], "No experiment matches 'no_such_family'."),
        (["a", "b"], "site takes at most one pattern (got 2 names)."),
        (["--plans=nothing/*"], "--plans matches no plan (got 'nothing/*')."),
        (["--out=site_models.py/site"], "'site_models.py/site' cannot be written: "),
        (["--serve=http"], "--serve takes a port (got 'http')."),
        (["--serve=70000"], "--serve takes a port (got '70000')."),
        (["--set=SEED=1"], "--set has no effect on site."),
        (["--import=no_such_module"], "Module 'no_such_module' is not on the Python path."),
    ],
)
def test_errors_are_sentences(inside, user_module, arguments, message):
    done = inside("registry", "site", "tiny.StdlibTiny", *arguments) if arguments[0].startswith("-") else None
    done = done or inside("registry", "site", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"registry: {message}")


def test_a_file_that_is_not_a_plan(inside, tmp_path):
    (tmp_path / "plan.json").write_text("[]")
    done = inside("registry", "site", "tiny.StdlibTiny", "--plans=plan.json")
    assert done.returncode == 2
    assert "'plan.json' cannot be read as a plan" in done.stderr


def test_records_are_cached_by_content(cache, monkeypatch):
    (first,) = collect.records(["tiny.StdlibTiny"])
    assert len(list(cache.glob("*.json"))) == 1
    monkeypatch.setattr(collect, "record", lambda name, imports: 1 / 0)  # what is cached is not built
    assert collect.records(["tiny.StdlibTiny"]) == [json.loads(json.dumps(first))]
    collect._code.cache_clear()
    monkeypatch.setattr(collect, "digest", lambda modules=(): "other code")
    with pytest.raises(ZeroDivisionError):
        collect.records(["tiny.StdlibTiny"])
    collect._code.cache_clear()


def test_a_damaged_record_is_built_again(cache):
    (first,) = collect.records(["tiny.StdlibTiny"])
    (file,) = cache.glob("*.json")
    file.write_text("{")
    assert collect.records(["tiny.StdlibTiny"]) == [first]
    assert json.loads(file.read_text()) == json.loads(json.dumps(first))


def test_unused_records_are_removed(cache):
    collect.records(["tiny.StdlibTiny"])
    old, kept = cache / "old.json", next(cache.glob("*.json"))
    old.write_text("{}")
    for file in (old, kept):
        os.utime(file, (0, 0))
    collect.records(["tiny.StdlibTiny"])
    assert [file.name for file in cache.glob("*.json")] == [kept.name]


def test_several_processes_return_the_same_records(monkeypatch):
    names = ["tiny.StdlibTiny", "zero.ZeroTestStage2", "site_models.Missing"]
    monkeypatch.setattr(collect, "PER_PROCESS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    made = collect.records(names)
    assert [each["name"] for each in made] == names
    assert "error" in made[2]
    assert json.loads(json.dumps(made[:2])) == json.loads(json.dumps([record(name) for name in names[:2]]))


def test_a_record_is_the_snapshot_with_its_line_of_ancestors():
    made, data = record("zero.ZeroTestStage2"), snapshot(resolve("zero.ZeroTestStage2"))
    assert {key: made[key] for key in ("knobs", "config", "mesh", "totals")} == {
        key: data[key] for key in ("knobs", "config", "mesh", "totals")
    }
    assert [each["name"] for each in made["ancestors"]][:3] == ["zero.ZeroTestStage2", "zero.ZeroTest", "zero.ZeroLm"]
    assert made["ancestors"][0]["sets"] == [("ZERO_STAGE", "2")]
    assert made["own"][0] == "DEVICE_MESH_SHAPE"
    for weight in made["weights"]:
        assert len(weight["cut"]) == len(weight["shape"])
        assert all(set(axes) <= set(made["mesh"]) for axes in weight["cut"])


def test_each_knob_is_set_or_declared_by_its_owner():
    made = record("gpt.GptXXL")
    classes = {each["name"]: dict((*each["sets"], *each["declares"])) for each in made["ancestors"]}
    for name, knob in made["knobs"].items():
        if name not in ("WEIGHTS", "ACTIVATIONS"):  # rows of all classes together
            assert classes[knob["owner"]][name] == knob["value"]


@pytest.mark.parametrize(
    ("parameters", "size"),
    [(1, 0), (9_999_999, 0), (10_000_000, 1), (124_000_000, 2), (10**9, 3), (10**10, 4), (10**11, 5), (10**13, 5)],
)
def test_sizes(parameters, size):
    totals = {"parameters": parameters, "bytes": 0}
    made = row({"name": "a.B", "mesh": {"x": 1}, "totals": totals})
    assert made["size"] == SIZES[size]


def test_kinds():
    assert kinds("attention") == ["attention"]
    assert kinds(("experts", "none", "experts", "dense")) == ["experts", "dense"]
    assert kinds(None) == []


def test_code_in_texts():
    assert code_marked("set `A<b>` & go") == "set <code>A&lt;b&gt;</code> &amp; go"
    assert code_marked("one ` mark") == "one ` mark"


def test_data_of_an_entry_has_meanings_that_differ_from_the_shared_ones():
    made = record("tiny.StdlibTiny")
    known = shared_knobs([made])
    assert known["SEED"] == (made["meanings"]["SEED"], "Optimization")
    text = entry_data(made, {**known, "SEED": ("another meaning", "Model")})
    data = json.loads(text.partition(" = ")[2].rstrip(";\n"))
    assert data["meanings"] == {"SEED": made["meanings"]["SEED"]}
    assert set(data["knobs"]) == set(made["knobs"])


def test_writing_again_changes_no_file(tmp_path):
    made = [record("tiny.StdlibTiny")]
    first = write_site(made, tmp_path / "site")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "site").rglob("*")}
    assert write_site(made, tmp_path / "site") == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "site").rglob("*")} == before
    assert first.bytes < 6 * 2**20


def test_a_list_of_files_removes_none_outside(tmp_path):
    made, outside = [record("tiny.StdlibTiny")], tmp_path / "outside.txt"
    outside.write_text("kept")
    write_site(made, tmp_path / "site")
    (tmp_path / "site" / "data" / "files.json").write_text('["../outside.txt", "data/../../outside.txt", "index.html"]')
    write_site(made, tmp_path / "site")
    assert outside.exists()


def test_the_server_listens_on_this_machine_alone(tmp_path):
    with server(tmp_path, 0) as running:
        assert running.server_address[0] == HOST == "127.0.0.1"
        with pytest.raises(Exception, match="cannot use the port"):
            server(tmp_path, running.server_address[1])
