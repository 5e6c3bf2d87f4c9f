"""Counts of tokens beyond what the device's integers hold."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from registry.resolve import resolve
from runners.session import Session
from runners.training import train
from runners.training.workdir import open_workdir
from tasks.language_model_task import LanguageModelTask
from tasks.metrics import TokenCount

EACH = 2**28  # for each token that there is


def test_a_count_that_wraps_around():
    count, on_device = TokenCount(), 0
    for step in range(1, 10):
        on_device = (on_device + 3 * 2**30 + 2**31) % 2**32 - 2**31  # int32 arithmetic
        count.read(on_device)
        assert count.total == step * 3 * 2**30


@pytest.fixture
def giant_batches(monkeypatch):
    """Metrics count batches of 2^31 tokens."""
    loss = LanguageModelTask.loss

    def many(*arguments, **options):
        objective, output = loss(*arguments, **options)
        tokens = output.metrics.tokens * jnp.int32(EACH)
        return objective, output.replace(metrics=output.metrics.replace(tokens=tokens))

    monkeypatch.setattr(LanguageModelTask, "loss", many)
    monkeypatch.setattr(train, "READ_TOKENS", train.READ_TOKENS // EACH)


def test_windows_of_more_tokens_than_the_device_counts(giant_batches, tmp_path):
    """A run that resumes inside a window logs the same numbers as one without a stop."""
    sizes = ["NUM_LAYERS=1", "BATCH_SIZE=2", "SEQ_LEN=4", "NUM_STEPS=10", "LOG_EVERY=4", "SAVE_EVERY=3"]
    knobs = [*sizes, "EVAL_EVERY=none", "EVAL_ROWS=8"]
    session = Session(resolve("tiny.StdlibTiny", knobs, smoke=True), jax.devices()[:1])

    def run():
        workdir = open_workdir(str(tmp_path), session.experiment, session.mesh_shape)
        assert train.train(session, workdir, train.TrainOptions(tensorboard=False)) == 0
        lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line["tokens_seen"] for line in lines if line["split"] == "train"}

    expected = {step: step * 2 * 4 * EACH for step in (4, 8, 10)}
    assert run() == expected
    extra = tmp_path / "checkpoints" / "9" / "extra" / "metadata"
    saved = json.loads(extra.read_text())
    assert saved["window_tokens"] == 2**31
    for metadata in (
        saved,
        {name: value for name, value in saved.items() if name != "window_tokens"},
    ):  # and earlier versions
        shutil.rmtree(tmp_path / "checkpoints" / "10")
        extra.write_text(json.dumps(metadata))
        assert run() == expected
