import sys

import pytest

from layers.errors import UsageError
from registry import index
from registry.experiment import REGISTRY
from registry.experiments.tiny import StdlibTiny
from registry.resolve import find, resolve


@pytest.mark.parametrize(
    "name",
    [
        "tiny.StdlibTiny",
        "registered.StdlibTiny",
        "StdlibTiny",
        "registered.tiny.StdlibTiny",
        "Stdlib-Tiny",
        "stdlib_tiny",
    ],
)
def test_spellings(name):
    assert find(name) is StdlibTiny


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("StdlibTinny", "no experiment 'StdlibTinny'. Did you mean 'StdlibTiny'"),
        ("tiny.StdlibTinny", "Did you mean 'tiny.StdlibTiny'"),
        (
            "no.such.module.Name",
            "'no.such.module.Name', and no module 'no.such.module' on the Python path",
        ),
        ("", "no experiment ''"),
    ],
)
def test_unknown_names(name, says):
    with pytest.raises(UsageError, match=says):
        find(name)


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Writes a module of the user's and puts it on the path."""

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    for key in [key for key in REGISTRY if key.startswith("user_")]:
        sys.modules.pop(key.rpartition(".")[0], None)
        del REGISTRY[key]


SOURCE = '''
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny

@register
class Wide(StdlibTiny):
    """Wider."""
    MODEL_DIM = 256
'''


def test_a_users_own_module(user_module):
    user_module("user_models", SOURCE)
    assert find("user_models.Wide").MODEL_DIM == 256
    assert resolve("Wide", imports=["user_models"]).MODEL_DIM == 256


def test_an_ambiguous_name_lists_the_candidates(user_module):
    user_module("user_twice", SOURCE.replace("class Wide", "class StdlibTiny"))
    find("user_twice.StdlibTiny")
    with pytest.raises(UsageError, match=r"could be tiny.StdlibTiny or user_twice.StdlibTiny"):
        find("StdlibTiny")


def test_an_import_error_is_shown_whole(user_module):
    user_module("user_broken", "import json\n\ndef f():\n    import missing_package\n\nf()\n")
    with pytest.raises(UsageError) as caught:
        resolve("tiny.StdlibTiny", imports=["user_broken"])
    text = str(caught.value)
    assert "Importing 'user_broken' failed" in text
    assert 'user_broken.py", line 6' in text
    assert "No module named 'missing_package'" in text
    with pytest.raises(UsageError, match="missing_package"):
        find("user_broken.Model")


def test_no_such_module():
    with pytest.raises(UsageError, match="no module 'user_nowhere' on the Python path"):
        resolve("tiny.StdlibTiny", imports=["user_nowhere"])


def test_the_index_read_from_source_equals_the_imported_truth():
    for key, entry in index.entries().items():
        cls = find(key)
        assert entry.base == cls.__bases__[0].__name__
        assert entry.doc == cls.__doc__.partition("\n")[0]
        assert entry.mesh == cls.DEVICE_MESH_SHAPE
    built_in = {key for key in REGISTRY if not REGISTRY[key].__module__.startswith(("user_", "tests."))}
    assert built_in == set(index.entries())
