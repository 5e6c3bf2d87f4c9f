"""Which code made a run: git checkouts, versions, configs that are read back."""

import itertools
import json
import re
import shutil
import subprocess
import tomllib

import pytest

from layers.errors import UsageError
from registry import index
from registry.build import to_json
from registry.overrides import METHODS
from registry.records import provenance
from registry.records.snapshot import flat_config, rebuilt, snapshot, stored_configs
from registry.resolve import resolve
from registry.tool.command_line import main
from tests.conftest import ROOT

FAMILIES = {name.partition(".")[0]: name for name in sorted(index.entries(), reverse=True)}  # the first entry of each


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A checkout of one commit, with an ignored folder."""
    if shutil.which("git") is None:
        pytest.skip("needs git: apt-get install git")
    folder = tmp_path_factory.mktemp("git") / "checkout"
    (folder / "models").mkdir(parents=True)
    (folder / "installed").mkdir()
    (folder / ".gitignore").write_text("installed\n")
    for file in ("models/model.py", "installed/package.py", "notes.txt"):
        (folder / file).write_text("1\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


@pytest.fixture
def copy(repository, tmp_path):
    """A copy of that checkout to change."""
    return shutil.copytree(repository, tmp_path / "copy")


def state(folder, file="models/model.py"):
    return provenance.checkout(folder / file, [folder / "models"])


def test_a_clean_checkout(repository):
    assert state(repository) == {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}


@pytest.mark.parametrize(
    ("file", "is_dirty"),
    [
        ("notes.txt", True),
        ("models/new.py", True),
        ("models/new.txt", False),
        ("run.py", False),
        ("installed/x.py", False),
    ],
)
def test_changes_of_tracked_files_and_new_code_make_it_dirty(copy, file, is_dirty):
    (copy / file).write_text("2\n")
    assert state(copy)["dirty"] is is_dirty


def test_a_worktree_has_the_commit_of_its_own(copy, tmp_path):
    git(copy, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "tree"))
    (tmp_path / "tree/models/model.py").write_text("3\n")
    git(tmp_path / "tree", "commit", "--quiet", "--all", "--message=second")
    assert state(tmp_path / "tree") == {"commit": git(tmp_path / "tree", "rev-parse", "HEAD"), "dirty": False}
    assert state(tmp_path / "tree")["commit"] != state(copy)["commit"]


def test_a_checkout_of_another_user(repository, monkeypatch):
    """As in a container, where git itself refuses."""
    known = state(repository)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        git(repository, "status")
    assert "dubious ownership" in refused.value.stderr
    assert state(repository) == known


def test_no_checkout_and_no_git(repository, tmp_path, monkeypatch):
    unknown = {"commit": None, "dirty": None}
    assert state(repository, "installed/package.py") == unknown, "an installed package"
    (tmp_path / "alone.py").write_text("")
    assert provenance.checkout(tmp_path / "alone.py", []) == unknown
    (tmp_path / ".git").mkdir()
    assert provenance.checkout(tmp_path / "alone.py", []) == unknown, "a folder that is not a repository"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state(repository) == unknown


def test_code_of_a_users_module(copy, monkeypatch):
    monkeypatch.syspath_prepend(copy / "models")
    resolve("tiny.StdlibTiny", imports=["model"])
    made = provenance.code(("model", "registry.experiments.tiny", "no_such_module", "sys"))
    assert set(made) == {"vortaro", "model"}
    assert made["model"]["commit"] == state(copy)["commit"]
    assert made["vortaro"]["digest"] == provenance.digest() != provenance.digest(["model"])


def test_modules_that_a_users_module_imports_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_sizes.py").write_text("WIDTH = 256\n")
    (tmp_path / "user_of_sizes.py").write_text("from user_sizes import WIDTH\n")
    (tmp_path / "unrelated.py").write_text("1\n")
    __import__("user_of_sizes")

    def found():
        provenance.code.cache_clear()
        return provenance.code(("user_of_sizes",))["user_of_sizes"]["digest"], provenance.digest(["user_of_sizes"])

    before = found()
    (tmp_path / "unrelated.py").write_text("2\n")
    assert found() == before
    (tmp_path / "user_sizes.py").write_text("WIDTH = 512\n")
    assert all(new != old for new, old in zip(found(), before, strict=True))
    provenance.code.cache_clear()


def test_all_dependencies_are_recorded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: of
        for name, of in project["optional-dependencies"].items()
        if not re.match("dev|docs|bench|browser|gpu|tpu", name)
    }
    names = {re.match(r"[\w-]+", text)[0] for text in (*project["dependencies"], *itertools.chain(*extras.values()))}
    assert names - {"vortaro"} <= {*provenance.PACKAGES, *provenance.OTHER_PACKAGES}
    assert set(provenance.PACKAGES) <= set(provenance.versions())


def stored_run(experiment, made=None):
    """What a run folder holds of it, as far as diffs read it."""
    one = dict.fromkeys(experiment.MESH_AXES, 1)
    configs = {root: json.loads(to_json(getattr(experiment, method)())) for root, method in METHODS.items()}
    return {**snapshot(experiment, one), "fiddle": configs, **(made or {})}


@pytest.mark.parametrize("name", FAMILIES.values())
def test_the_configs_of_a_run_are_read_back(name):
    experiment = resolve(name, smoke=True)
    stored = json.loads(json.dumps(stored_run(experiment)))
    assert stored_configs(stored) == {root: getattr(experiment, method)() for root, method in METHODS.items()}
    again = rebuilt(stored)
    assert again["config"] == flat_config(experiment)
    assert json.loads(json.dumps(again)) == {key: stored[key] for key in stored if key != "fiddle"}


def test_configs_that_cannot_be_read_back():
    stored = stored_run(resolve("tiny.StdlibTiny"))
    with pytest.raises(UsageError, match="has no configs"):
        stored_configs({**stored, "fiddle": {}})
    for old, new in (("tasks.programs", "tasks.no_such_module"), ("TrainProgram", "NoSuchProgram")):
        configs = json.loads(json.dumps(stored["fiddle"]).replace(old, new))
        with pytest.raises(UsageError, match=r"was run with cannot be read: .*(no_such_module|NoSuchProgram)"):
            stored_configs({**stored, "fiddle": configs})


def made(commit, jax, dirty=False):
    code = {"version": "0.1.0", "digest": "0" * 12, "commit": commit * 40, "dirty": dirty}
    return {"code": {"vortaro": code}, "versions": {"python": "3.11.0", "jax": jax}}


def test_diff_of_a_run_names_the_code_of_its_last_start(tmp_path, capsys, monkeypatch):
    first, last = made("a", "0.9.0"), made("b", "0.9.1", dirty=True)
    file = tmp_path / "experiment.json"
    starts = [{"started": "2026-01-01T00:00:00+00:00"} | start for start in (first, last)]
    file.write_text(json.dumps(stored_run(resolve("tiny.StdlibTiny"), first | {"starts": starts})))
    now = made("c", "0.10.0")
    monkeypatch.setattr("registry.records.provenance.made_now", lambda modules: now)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["diff", str(tmp_path)]) == 0, "only settings count"
    out = capsys.readouterr().out
    vortaro, jax = (
        re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if re.match(" *(vortaro|jax) ", line)
    )
    assert vortaro[1:] == [
        "0.1.0, commit bbbbbbbbbbbb with changes, digest 000000000000",
        "0.1.0, commit cccccccccccc, digest 000000000000",
    ]
    assert jax == ["jax", "0.9.1", "0.10.0"]
    assert "3.11.0" not in out, "versions that are equal"
    assert "a was started 2 times, with 2 states of the code." in out
    assert main(["diff", str(file), "tiny.StdlibTiny", "--json"]) == 0
    code = json.loads(capsys.readouterr().out)["code"]
    assert code["a"] == {**last, "starts": 2, "kinds": 2}
    assert code["b"] == {**now, "starts": 0, "kinds": 1}
    assert main(["diff", "tiny.StdlibTiny", "tiny.StdlibTiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == {}


def test_diff_of_a_run_is_on_the_mesh_of_the_run(tmp_path, capsys):
    stored = stored_run(resolve("gshard.DenseLm8B2x2", smoke=True))
    (tmp_path / "experiment.json").write_text(json.dumps(stored))
    assert stored["mesh"] != resolve("gshard.DenseLm8B2x2").mesh_shape()
    assert main(["diff", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mesh"] == []
    assert main(["diff", str(tmp_path), "--set=DEVICE_MESH_SHAPE=2,4", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["mesh"] == [stored["mesh"], {"data": 2, "model": 4}]


def test_diff_of_a_run_whose_class_is_gone(tmp_path, capsys):
    stored = stored_run(resolve("tiny.StdlibTiny"), {"experiment": "gone_models.Wide"})
    stored["config"]["task.z_loss"] = "0.5"  # as if the class of that time had another default
    (tmp_path / "experiment.json").write_text(json.dumps(stored))
    assert main(["diff", str(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["config"] == [{"path": "task.z_loss", "a": 0.5, "b": 0.0, "text_a": "0.5", "text_b": "0.0"}]
    assert json.loads(out)["weights"] == []
    assert "Unknown experiment 'gone_models.Wide'" in err
    assert "Compared with the recorded configs, built by the current code." in err
    assert main(["diff", str(tmp_path), "--set=SEED=1"]) == 2
