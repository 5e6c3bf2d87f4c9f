"""Pipelines: updates on several stages are those of one device, for each schedule, layer and other split."""

import json
import shutil

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from layers.specs import P, Specs
from registry.checks import check
from registry.templates.decoder import DecoderLm
from runners.planner import pipeline as planned
from runners.planner.cost import cost
from runners.planner.machine import Machine
from runners.planner.summary import numbers
from runners.session import Session
from tasks.zero import placed_table
from tests.support.split_updates import assert_updates_of_one_device, but_slow

MODEL = {"NUM_LAYERS": 4, "BATCH_SIZE": 16, "SEQ_LEN": 32, "MODEL_DIM": 32}
NO_BALANCE = {"AUX_LOSS": 0.0, "CAPACITY_FACTOR": None}  # the loss of balance is not linear in the batch
EXPERTS = {"FFN": "experts", "ROUTING": "top_k", "GATES": "normalized_sigmoid", "BIAS_RATE": 1e-3, **NO_BALANCE}
SLOTS = {"FFN": "experts", "SECOND_EXPERT": "all", "NUM_GROUPS": 2, "AUX_LOSS": 0.0, "CAPACITY_FACTOR": 8.0}


def pipeline(stage, data, model, **knobs):
    mesh = {"MESH_AXES": ("stage", "data", "model"), "DEVICE_MESH_SHAPE": (stage, data, model), "STACK": P("stage")}
    return MODEL | mesh | knobs


CASES = {
    "two stages, two repeats": pipeline(2, 1, 1, PIPELINE_REPEATS=2, REMAT="full"),
    "four stages, two repeats": pipeline(4, 1, 1, PIPELINE_REPEATS=2, NUM_LAYERS=8, UNROLL=2),
    "micro-batches": pipeline(2, 2, 1, PIPELINE_MICROBATCHES=2, GRADIENT_ACCUMULATION=2),
    "ZeRO 1, heads, repeats": pipeline(2, 2, 2, PIPELINE_REPEATS=2, ZERO_STAGE=1, LAYOUT="tensor_parallel"),
    "ZeRO 3": pipeline(2, 4, 1, ZERO_STAGE=3),
    "windows": pipeline(4, 1, 2, ATTENTION_WINDOW=(8, None), NUM_KV_HEADS=2, NUM_LAYERS=8),
    "a remainder": pipeline(2, 1, 1, ATTENTION_WINDOW=(8, None), NUM_LAYERS=5),
    "experts": pipeline(2, 2, 1, NUM_EXPERTS=4, EXPERTS_PER_TOKEN=2, NUM_GROUPS=4, **EXPERTS),
    "experts with slots": pipeline(2, 2, 1, ZERO_STAGE=1, **SLOTS),
    "vq": pipeline(2, 2, 1, MIXER="vq", POSITIONS="distance"),
    "packed rows": pipeline(2, 2, 1, DATA="text", ROWS="pack", VOCAB_SIZE=256),
    "positions": pipeline(2, 1, 2)
    | {
        "MESH_AXES": ("stage", "data", "sequence", "model"),
        "DEVICE_MESH_SHAPE": (2, 1, 2, 2),
        "SEQUENCE_AXIS": "sequence",
        "CONTEXT_PARALLEL": "ring",
    },
}
QUICK = ("two stages, two repeats", "ZeRO 1, heads, repeats")


@pytest.mark.parametrize("case", but_slow(CASES, QUICK))
def test_updates_are_those_of_one_device(case):
    assert_updates_of_one_device(CASES[case])


def test_weights_of_layers_fall_by_the_stages():
    bytes_of = {}
    for stages in (1, 2, 4):
        experiment = DecoderLm.derive(**pipeline(stages, 1, 1))()
        mesh = experiment.mesh_shape()
        table = placed_table(check(experiment).task, mesh)
        bytes_of[stages] = {row.path: row.bytes_per_device(mesh) for row in table}
        assert all(row.spec[0] == "stage" for row in table if row.stacked)
    for path, size in bytes_of[1].items():
        parts = 2 if path.startswith("params/stack/") else 1
        assert bytes_of[2][path] * parts == size
        assert bytes_of[4][path] * parts**2 == size


def test_the_plan_states_the_bubble_and_finds_its_loop():
    knobs = pipeline(2, 2, 1, PIPELINE_REPEATS=2, DATA="synthetic", VOCAB_SIZE=64)
    session = Session(DecoderLm.derive(**knobs)(), jax.devices()[:4])
    [one] = (content := cost(session, Machine()))["pipelines"]
    assert (one["stages"], one["repeats"], one["microbatches"], one["ticks"]) == (2, 2, 8, 17)
    assert one["bubble"] == 1 / 17
    assert 17 in one["loops"]
    text = "2 stages x 2 repeats, 8 micro-batches, bubble 5.9% of 17 ticks; the program has this loop"
    assert dict(numbers(content))["pipeline over stage"] == text
    [(_, text)] = planned.rows({"pipelines": [one | {"loops": [3]}]})
    assert text.endswith("not found in the program, whose loops have 3")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"MESH_AXES": ("data", "model"), "DEVICE_MESH_SHAPE": (2, 1)},
            "'stage' is not an axis of the mesh .*stage,data,model",
        ),
        ({"STACK": P("stage", None)}, r"STACK must have one entry .*P\('stage', None\)"),
        ({"NUM_LAYERS": 3}, r"into 2 parts, which divide no stack \(got 3 layers: a stack repeats 3 times\)"),
        ({"PIPELINE_REPEATS": 3}, "into 6 parts, which divide no stack"),
        ({"PIPELINE_MICROBATCHES": 3}, r"PIPELINE_MICROBATCHES must be a multiple of the 2 stages.*\(got 3\)"),
        ({"PIPELINE_MICROBATCHES": 32}, r"divide BATCH_SIZE / GRADIENT_ACCUMULATION = 16 rows .*\(got 32\)"),
        ({"ZERO_STAGE": 1, "ZERO_AXIS": "stage"}, r"ZERO_AXIS = stage does not work with STACK = P\('stage'\)"),
        ({"TBPTT_LEN": 8}, "does not work with TBPTT_LEN = 8. A pipeline carries no state"),
        (
            {"GRADIENT_DTYPE": "bfloat16"},
            "does not work with GRADIENT_DTYPE = bfloat16. Gradients of many micro-batches",
        ),
        (
            {"ACTIVATIONS": Specs(tokens_bs=P("data", None))},
            r"tokens_bs = P\('data', None\) does not split rows over 'stage'",
        ),
        ({"BATCH_SIZE": 2, "DEVICE_MESH_SHAPE": (2, 2, 1)}, "batch of 2 rows"),
        ({"FFN": "experts", "NUM_GROUPS": 256}, "NUM_GROUPS must divide the 64 tokens of a"),
    ],
)
def test_bad_requests(knobs, message):
    with pytest.raises(UsageError, match=message):
        check(DecoderLm.derive(**pipeline(2, 1, 1) | knobs)())


@pytest.mark.slow
def test_checkpoints_move_between_stages_and_one_device(inside, tmp_path):
    settings = ("NUM_STEPS=12", "SAVE_EVERY=4", "EVAL_EVERY=4", "LOG_EVERY=4", "NUM_LAYERS=4", "train.keep_last=3")
    flags = ("--exp=tiny.StdlibTiny", "--workdir=run", "--smoke", "--no-tensorboard", *(f"--set={s}" for s in settings))
    mesh = ("MESH_AXES=stage,data,model", "DEVICE_MESH_SHAPE=2,2,2", 'STACK=P("stage")', "PIPELINE_REPEATS=2")
    stages = ("--host_devices=8", *(f"--set={s}" for s in mesh))
    losses = []
    for step, more in ((None, ()), (4, stages), (8, ())):  # each start resumes from what the one before has saved
        for later in () if step is None else range(step + 4, 13, 4):
            shutil.rmtree(tmp_path / "run" / "checkpoints" / str(later))
        done = inside("runners.main", *flags, *more)
        assert done.returncode == 0, done.stderr
        assert step is None or f"Resumed at step {step} " in done.stdout
        records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        losses.append([record["loss"] for record in records if record["step"] == 12])
        assert ("pipeline: 2 stages x 2 repeats" in done.stdout) is bool(more)
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, rtol=1e-4)
