"""No code of the project reads a format that can run code or write outside of its folder."""

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

PACKAGES = ("layers", "tasks", "registry", "runners", "launch", "vortaro", "testing", "benchmarks")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
# numpy.load reads archives, and pickles if it is allowed to; tasks.inputs.files.npy reads arrays alone.
FORBIDDEN = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load", "dill.loads", "marshal.load", "marshal.loads"),
    *("joblib.load", "shelve.open", "pandas.read_pickle", "np.load", "numpy.load", "torch.jit.load"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "eval", "exec", "shutil.unpack_archive"),
}
UNPACKING = ("extract", "extractall")  # of archives: a filter limits them to their folder
SHELLS = ("os.system", "os.popen", "subprocess.getoutput")


def calls(source: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yields the line, the name and the keywords of each call; imported names have their module in front."""
    tree = ast.parse(source)
    imports = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
            name = ast.unparse(node.func)
            yield node.lineno, imports.get(name, name), words


def is_dangerous(name: str, keywords: dict[str, str]) -> bool:
    if name.endswith("torch.load") or name == "torch.load":
        return keywords.get("weights_only") != "True"
    if name.rpartition(".")[2] in UNPACKING and "." in name:
        return keywords.get("filter") not in ("'data'", '"data"')
    return (
        name in FORBIDDEN
        or name in SHELLS
        or keywords.get("allow_pickle") == "True"
        or keywords.get("shell") == "True"
        or keywords.get("trust_remote_code") == "True"
    )


def test_no_file_is_unpickled_evaluated_or_unpacked_without_a_filter():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for line, name, keywords in calls(path.read_text())
        if is_dangerous(name, keywords)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "pickle.load(file)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file)",
        "x.read_array(file, allow_pickle=True)",
        "archive.extractall(folder)",
        "yaml.load(text)",
        "eval(text)",
        "from numpy import load as read\nread(file)",
        "from pickle import loads\nloads(data)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_test_finds_them(source):
    assert any(is_dangerous(name, keywords) for _, name, keywords in calls(source))


@pytest.mark.parametrize(
    "source", ["torch.load(file, weights_only=True)", "archive.extractall(a, filter='data')", "model.eval()"]
)
def test_safe_calls_are_allowed(source):
    assert not any(is_dangerous(name, keywords) for _, name, keywords in calls(source))


def test_the_only_unpickler_imports_no_name():
    """That of torch's tensors; tests/tasks/inputs/sources/test_sources_webdataset.py shows that it runs no code."""
    using = [str(path.relative_to(ROOT)) for path in FILES if "import pickle" in path.read_text()]
    assert using == ["tasks/inputs/files/torch_tensors.py"]
