"""Documents that a function makes."""

import importlib
import pickle
import sys

import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.sources.documents import Skipped
from tasks.inputs.sources.functions import FromFunction

MODULE = """
import numpy as np
from tasks.inputs.sources.documents import Skipped

def documents(split):
    yield f"of {split}"
    yield np.array([1, 2])
    yield ""
    yield Skipped("too short")

def numbers(split):
    yield 3

def nothing(split):
    return None

def fails(split):
    raise ValueError("the user's own")

limit = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = "module_of_documents"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)


def read(source, split=None):
    return [document for part in source.parts(split) for document in pickle.loads(pickle.dumps(part)).read()]


def test_documents_of_a_function(module, tmp_path):
    source = FromFunction(function=f"{module}:documents")
    text, ids, *skipped = read(source)
    assert text == "of None"
    assert np.array_equal(ids, [1, 2])
    assert skipped == [Skipped("empty"), Skipped("too short")]
    (part,) = source.parts(None)
    assert part.version != FromFunction(function=source.function, version="2").parts(None)[0].version
    (tmp_path / f"{module}.py").write_text(MODULE + "\n")
    assert part.version != source.parts(None)[0].version
    with pytest.raises(UsageError, match=r"no splits of its own"):
        source.parts("train")


def test_splits(module):
    source = FromFunction(function=f"{module}:documents", has_splits=True)
    names = {split: source.parts(split)[0].name for split in ("train", "validation", "test")}
    assert len(set(names.values())) == 3
    assert read(source, "test")[0] == "of test"
    with pytest.raises(UsageError, match=r"one of train, validation, test must be named"):
        source.parts(None)


def test_what_can_be_wrong(module, tmp_path):
    parts = lambda function: FromFunction(function=function).parts(None)
    with pytest.raises(UsageError, match=r"does not name a function. Write module:name"):
        parts(module)
    with pytest.raises(UsageError, match=r"module 'nowhere.at_all' .* cannot be found"):
        parts("nowhere.at_all:documents")
    with pytest.raises(UsageError, match=r"has no function 'document'. Did you mean 'documents'"):
        parts(f"{module}:document")
    with pytest.raises(UsageError, match=r"has no function 'limit'"):
        parts(f"{module}:limit")
    with pytest.raises(UsageError, match=r"got int as document 0"):
        read(FromFunction(function=f"{module}:numbers"))
    with pytest.raises(UsageError, match=r"must yield documents \(got NoneType\)"):
        read(FromFunction(function=f"{module}:nothing"))
    with pytest.raises(ValueError, match="the user's own"):
        read(FromFunction(function=f"{module}:fails"))
    (tmp_path / "half_there.py").write_text("import no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        parts("half_there:documents")


def test_functions_of_python_are_not_called(tmp_path):
    """The record of a run names its function, and the run may come from somebody else."""
    for name in ("os:system", "subprocess:getoutput", "os.path:exists"):
        with pytest.raises(UsageError, match=rf"'{name}' is of Python's library"):
            read(FromFunction(function=name))
