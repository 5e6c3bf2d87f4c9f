"""Lower bounds of pyproject.toml, read against the versions that constraints.txt pins. Nothing is installed."""

import ast
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINS = [Requirement(line) for line in LINES if line]
PYTHONS = ("3.11", "3.12", "3.13")


def pinned(name: str, python: str) -> str | None:
    """The version of a package that is pinned for a version of Python."""
    fitting = [
        pin for pin in PINS if pin.name == name and (not pin.marker or pin.marker.evaluate({"python_version": python}))
    ]
    assert len(fitting) <= 1, f"{name} is pinned twice for Python {python}"
    return next((spec.version for pin in fitting for spec in pin.specifier), None)


@pytest.mark.parametrize("requirement", map(Requirement, PROJECT["dependencies"]), ids=lambda each: each.name)
def test_a_dependency_has_a_lower_bound_that_its_pin_satisfies(requirement):
    assert any(spec.operator == ">=" for spec in requirement.specifier), f"{requirement.name} needs a lower bound"
    for python in PYTHONS:
        version = pinned(requirement.name, python)
        assert version is not None, f"constraints.txt does not pin {requirement.name} for Python {python}"
        assert requirement.specifier.contains(version, prereleases=True)


def test_tensorflow_is_an_extra():
    """`make demo` installs the dependencies alone; TensorFlow and TensorBoard would triple them."""
    names = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert not names & {"tensorflow", "tensorboard", "clu", "tensorflow-datasets", "seqio"}
    assert {Requirement(line).name for line in PROJECT["optional-dependencies"]["tensorboard"]} >= {
        "tensorboard",
        "clu",
    }


def test_every_extra_is_documented():
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    extras = {extra for extra in PROJECT["optional-dependencies"] if not extra.startswith("bench")}
    assert {extra for extra in extras if f"`{extra}`" not in page} == set()


def test_extras_admit_their_pins():
    """Those of benchmarks have pins of their own, in benchmarks/constraints.txt."""
    extras = PROJECT["optional-dependencies"].items()
    for extra, lines in ((extra, lines) for extra, lines in extras if not extra.startswith("bench")):
        for requirement in map(Requirement, lines):
            version = pinned(requirement.name, "3.11")
            assert version is None or requirement.specifier.contains(version, prereleases=True), (extra, requirement)


def imported_packages(path: Path) -> set[str]:
    """The names of packages that the import statements of a file name."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {module.partition(".")[0] for module in modules}


def test_torch_is_imported_by_name():
    """Lint checks a fresh clone, which does not have torch: an import statement of it is an error there."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    without = {path for pattern in folders["exclude"] for path in ROOT.glob(pattern)}
    files = {path for folder in folders["include"] for path in (ROOT / folder).rglob("*.py")} - without
    assert [str(path.relative_to(ROOT)) for path in sorted(files) if "torch" in imported_packages(path)] == []
