import hashlib

import numpy as np
import pytest

from layers.errors import UsageError
from registry.device_order import device_ids
from registry.resolve import resolve
from tests.support.references.lingvo import NUMBERS


@pytest.mark.parametrize("name", NUMBERS["digests"])
def test_digests_of_the_reference(name):
    experiment = resolve(name)
    ids = device_ids(experiment.DEVICE_ORDER, experiment.DEVICE_MESH_SHAPE)
    assert ids.shape == experiment.DEVICE_MESH_SHAPE
    assert sorted(ids.ravel()) == list(range(experiment.num_devices))
    digest = hashlib.sha256(",".join(map(str, ids.ravel())).encode()).hexdigest()
    assert digest[:16] == NUMBERS["digests"][name]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16])
def test_neighbors_on_a_ring_are_two_apart(count):
    row = device_ids("ring", (1, count))[0]
    assert np.abs(np.diff([*row, row[0]])).max(initial=0) <= 2


def test_three_axes_have_no_ring():
    with pytest.raises(UsageError, match="two axes"):
        device_ids("ring", (2, 2, 2))
