"""Run folders that an earlier version wrote resume to the numbers of that version."""

import json

import pytest

from registry.index import entries
from runners.training.metrics_log import METRICS
from tests.support.golden_runs import EXPERIMENTS, STEPS, STOPPED_AT, unpack


def test_every_family_has_one():
    assert {name.partition(".")[0] for name in entries()} == set(EXPERIMENTS)


QUICK = {"tiny"}  # `make test-slow` runs the other ones


@pytest.mark.parametrize(
    "family", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS]
)
def test_a_run_of_an_earlier_version_resumes(family, tmp_path, inside):
    unpack(family, tmp_path)
    metrics = tmp_path / "run" / METRICS
    before = [json.loads(line) for line in metrics.read_text().splitlines()]
    done = inside("runners.main", "--workdir=run", "--no-tensorboard")
    assert done.returncode == 0, done.stderr
    assert f"step {STOPPED_AT}" in done.stdout
    after = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [(line["step"], line["split"]) for line in before]
    assert [(line["step"], line["split"]) for line in after] == steps
    assert steps[-1][0] == STEPS
    for old, new in zip(before, after, strict=True):
        learned = {name: old[name] for name in ("loss", "grad_norm", "param_norm") if name in old}
        assert {name: new[name] for name in learned} == pytest.approx(learned, rel=1e-3), old["step"]
