"""The walk over a config, and the steps of a path into it."""

import fiddle as fdl
import pytest

from layers.errors import UsageError
from layers.specs import P, Specs
from registry.config_paths import get_field, path_steps, walk


def leaf(size=3, parent=None):
    return size, parent


def root(leaves, table, size=1.5, **others):
    return leaves, table, size, others


SHARED = fdl.Config(leaf)
CONFIG = fdl.Config(
    root, [SHARED, fdl.Config(leaf, size=4)], Specs(in_mf=P(None, "data")), inputs={"a": SHARED}, spare=(1, 2)
)


def test_walk_yields_every_field_in_the_order_of_declaration():
    found = dict(walk(CONFIG, "task"))
    assert list(found) == [
        *("task", "task.leaves", "task.leaves.0", "task.leaves.0.size", "task.leaves.1", "task.leaves.1.size"),
        *("task.table", "task.table.in_mf", "task.size", "task.others"),
        *("task.inputs", "task.inputs.a", "task.inputs.a.size", "task.spare"),
    ]
    assert (found["task.leaves.0.size"], found["task.leaves.1.size"], found["task.size"]) == (3, 4, 1.5)
    assert found["task.leaves.0"] is found["task.inputs.a"] is SHARED


def test_every_path_of_the_walk_can_be_looked_up():
    for path, value in list(walk(CONFIG, "task"))[1:]:
        *_, (at, holder, name) = path_steps(CONFIG, path)
        assert at == path
        assert get_field(holder, name) is value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("task", "'task' is a config, not a field. Name one of its fields (leaves, table, size"),
        ("task.leaves.2", "Unknown field '2' in task.leaves. Valid: '0', '1'"),
        ("task.size.x", "task.size is one value, 1.5, without fields."),
    ],
)
def test_other_paths_are_refused(path, message):
    with pytest.raises(UsageError) as error:
        list(path_steps(CONFIG, path))
    assert message in str(error.value)
