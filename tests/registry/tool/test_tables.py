"""Tables at 80 and 120 columns: names are complete, shortened text has the mark, no line is too long."""

import functools
import re

import pytest

from registry.index import entries
from registry.records.diff import diff
from registry.records.knob_docs import GROUPS, groups, meanings
from registry.records.snapshot import snapshot
from registry.resolve import find, resolve
from registry.tool import render, totals
from registry.tool.command_line import main
from registry.tool.tables import MARK, Table, shortened

LONG = ("gshard.MoeLm2048x619B", "vq.VQImageNet64Tbptt")
WIDTHS = (80, 120)


@functools.cache
def recorded(name):
    """Returns the snapshot of an entry."""
    return snapshot(resolve(name))


@pytest.fixture(params=WIDTHS)
def printed(request, capsys, monkeypatch):
    """What a function prints at a width; no line of it is longer."""
    monkeypatch.setenv("COLUMNS", str(request.param))

    def call(function, *arguments):
        function(*arguments)
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= request.param
        return out

    return call


def require_names(out, names):
    """Each name is in the output, not broken, and not as a part of another word."""
    words = {word.strip(",:") for word in out.split()}
    assert {name for name in names if name and name not in words} == set()


def require_marks(out, values):
    """Each value is in the output, wrapped at most between words, or its beginning with the mark."""
    text = " ".join(out.split())
    for value in map(str, values):
        value = " ".join(value.split())
        cut = (value[:count].rstrip() for count in range(len(value) - 1, 5, -1))
        assert value in text or any(f"{part}{MARK}" in text or f"{part} {MARK}" in text for part in cut), value


def test_list(printed, monkeypatch):
    rows = [
        {
            "name": entry.key,
            "base": entry.base,
            "doc": entry.doc,
            "mesh": entry.mesh,
            "meshes": entry.meshes,
            "devices": 2048,
        }
        | {key: totals.stored()[entry.key][key] for key in ("parameters", "bytes")}
        for entry in entries().values()
    ]
    out = printed(render.entries, rows)
    require_names(out, [row["name"] for row in rows])
    assert [line for line in out.splitlines() if line in {row["name"].partition(".")[0] for row in rows}]
    require_marks(out, [row["doc"] for row in rows])
    monkeypatch.setattr(totals, "stored", dict)
    out = printed(main, ["list"])
    require_names(out, entries())
    assert "parameters" not in out.splitlines()[1]
    assert "Parameters of experiments in other packages are computed on request" in " ".join(out.split())


@pytest.mark.parametrize("name", LONG)
def test_show(printed, name):
    data = recorded(name)
    out = printed(render.experiment, data)
    require_names(out, [*data["knobs"], *data["config"], *(knob["owner"] for knob in data["knobs"].values())])
    require_marks(out, [knob["value"] for knob in data["knobs"].values()] + list(data["config"].values()))


@pytest.mark.parametrize("name", LONG)
def test_show_of_all_knobs_has_groups_and_meanings(printed, name):
    data, texts = recorded(name), meanings(find(name))
    out = printed(main, ["show", name, "--all"])
    assert [line for line in out.splitlines() if line in GROUPS] == list(dict.fromkeys(groups(find(name)).values()))
    require_names(out, [*data["knobs"], *data["config"]])
    require_names(out, {word.strip(",:") for name in data["knobs"] for word in texts[name].split()})


@pytest.mark.parametrize("name", LONG)
def test_weights(printed, name):
    data = recorded(name)
    out = printed(render.weights, data)
    require_names(out, [row["path"].removeprefix("params/") for row in data["weights"]])
    for row in data["weights"]:
        require_names(out, [row["dtype"], row["role"], row["init"], "x".join(map(str, row["shape"]))])
    require_marks(out, [row["spec"] for row in data["weights"]])


@pytest.mark.parametrize("pair", [LONG, LONG[::-1], ("vq.VQImageNet64", LONG[1])])
def test_diff(printed, pair):
    difference = diff(*map(recorded, pair))
    out = printed(render.difference, difference)
    owners = {row[side] for row in difference["knobs"] for side in ("owner_a", "owner_b")} - {None}
    paths = [row["path"].removeprefix("params/") for part in ("config", "weights") for row in difference[part]]
    require_names(out, [*pair, *owners, *paths, *(row["knob"] for row in difference["knobs"]), *difference["totals"]])
    values = [row[side] for part in ("knobs", "config") for row in difference[part] for side in ("a", "b")]
    require_marks(out, [value for value in values if value is not None])


def test_explain_check_and_tree(printed):
    activations = recorded(LONG[1])["knobs"]["ACTIVATIONS"]["value"]
    rows = [
        {
            "what": "task.model.stack.block.blocks.0.mixer.quantizer.codebook_size",
            "value": "512",
            "where": "vq_lm.py:1",
        },
        {"what": "ACTIVATIONS", "value": activations, "where": "VQLm, a/vq.py:2"},
    ]
    out = printed(render.steps, rows)
    require_names(out, [row["what"] for row in rows] + ["vq_lm.py:1", "VQLm", "a/vq.py:2"])
    require_marks(out, [row["value"] for row in rows])
    reason = "DEVICE_MESH_SHAPE = (3, 1): 3 devices along 'data' do not divide embedding_vm " * 3
    require_names(printed(render.checks, [{"name": LONG[0], "ok": False, "reason": reason}]), [LONG[0], "embedding_vm"])
    names = [f"{'deep' * depth}.DenseLm12kWide162BAdamBS25616x16" for depth in range(1, 5)]
    children = dict(zip(names, ([name] for name in names[1:]), strict=False))
    require_names(printed(render.tree, {"root": names[0], "children": children}), names)


def test_in_a_pipe_tables_are_wide_and_nothing_is_shortened_or_broken(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    for name in LONG:
        data = recorded(name)
        render.weights(data)
        render.experiment(data)
        out = capsys.readouterr().out
        assert MARK not in out
        weights = [row["path"].removeprefix("params/") for row in data["weights"]]
        require_names(out, [*weights, *data["knobs"], *data["config"]])
        assert re.search(rf"^ {re.escape(weights[-1])} +\S+ +float32 .* \S+ [KMGT]?i?B *$", out, re.MULTILINE)


@pytest.mark.parametrize("columns", ["", "wide", "0", "-3"])
def test_a_width_that_is_not_a_number_is_ignored(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    render.weights(recorded(LONG[0]))
    assert "stack/block/blocks_0/mixer/relative_bias/relative_bias_nr " in capsys.readouterr().out


def test_cells_below_their_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a" * 20, 1, "b" * 15, ""), ("c", 22, "d", "words [red]of[/red] a long sentence that ends")]
    render.console().print(Table(("name", "n", "class", "what"), rows, right=("n",), title="T", flexible={"what": 30}))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "T",
        "",
        " name                    n",
        " ─────────────────────────",
        f" {'a' * 20}    1",
        f"    class {'b' * 15}",
        " c                      22",
        "    class d",
        "    what words [red]of[/red] a long sen…",
        "",
    ]


def test_numbers_do_not_round_to_something_false():
    amounts = {0: "0", 999: "999", 1000: "1 k", 820_352: "820.4 k", 999_949: "999.9 k", 999_950: "1 M"}
    assert {number: render.amount(number) for number in amounts} == amounts
    assert [render.amount(10**15), render.amount(999_999_999_999)] == ["1000 T", "1 T"]
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1024**2 - 1: "1 MiB", 1023 * 1024: "1023 KiB"}
    assert {number: render.size(number) for number in sizes} == sizes
    assert [render.ratio(a, b) for a, b in ((0, 1), (2, 2), (10_000, 9_999), (10**9, 10**9 + 1), (3, 1))] == [
        "-",
        "1x",
        "0.9999x",
        "1.000000001x",
        "0.333x",
    ]
    assert [render.percent(share) for share in (0, 1, 0.5, 0.9996, 0.0004, 1e-6)] == [
        "0.0%",
        "100.0%",
        "50.0%",
        "99.96%",
        "0.04%",
        "0.0001%",
    ]
    assert render.apart(124_439_808, 124_439_809, render.amount) == ("124,439,808", "124,439,809")
    assert render.apart(2**30, 2**30 - 1, render.size) == ("1,073,741,824 B", "1,073,741,823 B")
    assert render.apart(2**30, 2**31, render.size) == ("1 GiB", "2 GiB")


def test_shortened():
    assert [shortened("a word", width) for width in (6, 5, 3)] == ["a word", "a wo…", "a…"]
