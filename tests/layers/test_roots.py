import sys
from types import ModuleType

import pytest

from layers import roots


def test_the_finder_is_first_once_and_finds_our_packages_alone():
    roots.ours_first()
    finders = [finder for finder in sys.meta_path if type(finder).__name__ == "RootFinder"]
    assert len(finders) == 1
    assert sys.meta_path.index(finders[0]) <= 1  # pytest rewrites assertions by a finder before it
    for name in roots.ROOTS:
        spec = finders[0].find_spec(name)
        assert spec is not None
        assert spec.origin == str(roots.FOLDER / name / "__init__.py")
    assert finders[0].find_spec("json") is None
    assert finders[0].find_spec("tasks.optimizers.schedules") is None


def test_a_module_that_took_a_name_before_is_named(monkeypatch):
    module = ModuleType("tasks")
    module.__file__ = "/home/user/tasks.py"
    monkeypatch.setitem(sys.modules, "tasks", module)
    with pytest.raises(ImportError, match=r"'tasks' was imported from /home/user/tasks.py, but .* Rename it"):
        roots.ours_first()
