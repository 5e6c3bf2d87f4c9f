"""Several real processes train like one, write once, and resume with another number of processes."""

import numpy as np
import pytest

from testing.launches import last_state
from tests.support.processes.starting import carry_out
from tests.support.run_folders import lines

pytestmark = pytest.mark.slow


SETTINGS = ("NUM_STEPS=3", "LOG_EVERY=1", "EVAL_EVERY=none", "STEP_TIMEOUT=200")
# By what is special about them over processes.
ENTRIES = {
    "tiny.StdlibTinyLlama": ["DEVICE_ORDER=ring", "DEVICE_MESH_SHAPE=8,1"],  # rows of a host are not neighbors
    "gshard.MoeLm8x2B": [],  # experts exchange tokens
    "vq.VQStdlib": [],  # codebooks are averaged over all rows
    "gpt.GptStdlib": ["DROPOUT=0.1"],
    "zero.ZeroTestStage3": ["DEVICE_MESH_SHAPE=8,1"],  # weights in parts
    "tiny.StdlibTinyPhases": ["DEVICE_MESH_SHAPE=8,1"],  # another update after a border
}
COUNTS = {1: [*ENTRIES], 2: [*ENTRIES], 4: ["gshard.MoeLm8x2B", "zero.ZeroTestStage3"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where 1 x 8 and 2 x 4 processes and devices have trained all entries, and 4 x 2 some."""
    root = tmp_path_factory.mktemp("entries")
    for count, names in COUNTS.items():
        ended = carry_out({name: training(root, count, name) for name in names}, count, 8 // count, root)
        assert {process.returncode for processes in ended.values() for process in processes} == {0}, ended
    return root


def training(root, count, name):
    """The folder, and the arguments that train an entry."""
    sets = [f"--set={override}" for override in (*SETTINGS, *ENTRIES[name])]
    return root, [f"--exp={name}", "--smoke", f"--workdir={root / str(count) / name}", "--no-tensorboard", *sets]


@pytest.mark.parametrize(("count", "name"), [(count, name) for count in (2, 4) for name in COUNTS[count]])
def test_processes_learn_what_one_learns(folders, count, name):
    alone, together = (lines(folders / str(n) / name) for n in (1, count))
    assert [(line["step"], line["split"]) for line in together] == [(line["step"], line["split"]) for line in alone]
    assert len(alone) >= 4  # three updates and the validation split
    for one, other in zip(alone, together, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=2e-6)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_weights_are_those_of_one_process(folders, name):
    one, other = (last_state(folders / str(n) / name) for n in (1, 4 if name in COUNTS[4] else 2))
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_allclose(other[path], one[path], rtol=1e-3, atol=1e-5, err_msg=path)
