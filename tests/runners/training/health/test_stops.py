"""Runs that stop at an update that is not finite name its first cause, from any checkpoint and on several processes."""

import html
import json

import pytest

from tests.support.processes.starting import finish, start

POISONED = """
import numpy as np
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from tasks.inputs.indexed import InputIterator

@register
class Poisoned(StdlibTiny):
    '''Rows 2 and 5 of the batch of update 12 have loss weights that are not finite, from position 7 on.'''

def poisoned(self, before=InputIterator.__next__):
    batch = before(self)
    if self._next == 12:
        rows = [row for shard in self._shards for row in shard.rows(8)]
        batch.weights[[rows.index(row) for row in (2, 5) if row in rows], 7:] = np.nan
    return batch

InputIterator.__next__ = poisoned
"""
SETTINGS = ("NUM_STEPS=20", "SAVE_EVERY=5", "EVAL_EVERY=none", "LOG_EVERY=7", "DROPOUT=0.1")
FLAGS = ["--exp=poisoned.Poisoned", "--smoke", "--no-tensorboard", *(f"--set={setting}" for setting in SETTINGS)]
CAUSE = (
    "The loss of step 12 is not finite: the loss at a position is the first that is not, in rows 2 and 5 of the batch, "
    "from position 7 of row 2 (details in non_finite.json). The run stops without saving it; the last good checkpoint "
    "is of step 10 in run. A lower learning rate,"
)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(1, 1), (1, 8), (2, 1)])
def test_the_rows_of_a_bad_batch_are_named(tmp_path, processes, devices):
    (tmp_path / "poisoned.py").write_text(POISONED)
    ended = finish(start("runners.main", processes, devices, [*FLAGS, "--workdir=run"], tmp_path), timeout=600)
    assert [process.returncode for process in ended] == [1] * processes, ended[0].stderr
    assert CAUSE in ended[0].stderr
    assert "Traceback" not in ended[0].stderr
    assert "Step 12 is not finite: computing updates 11 to 12 again to find the first such value" in ended[0].stdout
    record = json.loads((tmp_path / "run" / "non_finite.json").read_text())
    assert html.escape(record["cause"]) in (tmp_path / "run" / "report.html").read_text()
    assert (record["step"], record["replayed_from"], record["objective"]) == (12, 10, None)
    assert record["outputs"][-1]["rows"] == {"2": 7, "5": 7}
    assert not any(output["rows"] for output in record["outputs"][:-1])
    assert all(entry["non_finite"] for entry in record["gradient"])
    assert (tmp_path / "run" / "checkpoints" / "10").is_dir()
