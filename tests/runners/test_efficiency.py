"""No step compiles anything after the first, and an update needs no second copy of the state."""

import math
import re

import jax
import pytest

from registry.resolve import resolve
from runners.compiled_functions import Updates
from runners.session import Session
from runners.training.train import TrainOptions, train
from runners.training.workdir import open_workdir

ONE_OF_EACH_FAMILY = [
    "tiny.StdlibTiny",
    "gshard.DenseLm128B8x8",
    "wiki_bert.MLPerfBertDense13B32x32",
    "vq.VQStdlib",
    "mu.MuTiny",
    "gpt.GptStdlib",
    "gpt2.Gpt2Small",
    "little_gpt.LittleGpt127M",
    "zero.Zero1B3Stage3",
]


@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_the_update_writes_the_new_state_over_the_old(name):
    session = Session(resolve(name, ["LOG_EVERY=5"], smoke=True), jax.devices()[:1])
    with session.placed():
        compiled = session.functions.compile_step(session.host_batches.put(session.train.input.batch(0)))
    state = jax.tree.leaves(session.abstract.state)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in state if leaf.size)
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= held
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 1024, "no other output than pointers"


@pytest.mark.parametrize("name", ["tiny.StdlibTiny", "gpt2.Gpt2Small", "mu.MuTiny"])
def test_the_update_copies_no_weights(name):
    """A read of the old weights after the update, for example for a norm, would copy all of them."""
    session = Session(resolve(name, ["LOG_EVERY=5"], smoke=True), jax.devices()[:1])
    with session.placed():
        text = session.functions.compile_step(session.host_batches.put(session.train.input.batch(0))).as_text()
    assert re.search(r"%state_variables__params__\S* = f32\[\S* parameter\(", text), "weights go by this name"
    copied = re.findall(r"f32\[([\d,]+)\]\S* copy\(%state_variables__params__", text)
    weights = sum(row.size for row in session.task.weight_table())
    assert sum(math.prod(map(int, shape.split(","))) for shape in copied) < weights / 50


@pytest.mark.parametrize("name", ["tiny.StdlibTiny", "vq.VQStdlib"])
def test_a_run_compiles_nothing_after_its_first_checkpoint(name, tmp_path, monkeypatch):
    """After step 8 reports, evaluations and checkpoints have all been made once."""
    compiled = []
    watch = lambda event, seconds, **_: compiled.append(seconds) if event.endswith("backend_compile_duration") else None
    settings = ["NUM_STEPS=24", "LOG_EVERY=4", "EVAL_EVERY=8", "SAVE_EVERY=8", "EVAL_ROWS=8"]
    session = Session(resolve(name, settings, smoke=True), jax.devices()[:1])
    counts, of = [], Updates.of
    monkeypatch.setattr(Updates, "of", lambda *given: (counts.append(len(compiled)), of(*given))[1])
    jax.monitoring.register_event_duration_secs_listener(watch)
    workdir = open_workdir(str(tmp_path), session.experiment, session.mesh_shape)
    try:
        assert train(session, workdir, TrainOptions(tensorboard=False)) == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(watch)
    assert len(counts) == 25, "to compile it, and for each of 24 steps"
    assert counts[1] > counts[0], "the listener receives events"
    late = len(compiled) - counts[10]
    assert late == 0, f"{late} programs were compiled after step 9"


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        ("8,1", ["ZERO_STAGE=2"]),
        ("4,2", ["ZERO_STAGE=3", "GRADIENT_ACCUMULATION=2"]),
        ("2,4", ["GRADIENT_ACCUMULATION=2", "TIE_EMBEDDINGS=false"]),
        ("1,1", ["GRADIENT_DTYPE=bfloat16"]),
    ],
)
def test_losses_in_pieces_equal_those_in_one_for_all_storage_of_gradients(mesh, settings):
    results = []
    for chunk in ("none", "8"):
        overrides = [*settings, f"DEVICE_MESH_SHAPE={mesh}", f"LOSS_CHUNK={chunk}", "LOG_EVERY=1", "BATCH_SIZE=16"]
        session = Session(
            resolve("tiny.StdlibTiny", overrides, smoke=True), jax.devices()[: math.prod(map(int, mesh.split(",")))]
        )
        with session.placed():
            batch = session.host_batches.put(session.train.input.batch(0))
            update, state = session.functions.compile_step(batch), session.functions.init()
            for _ in range(3):
                state = session.settle(update(state, batch, session.seed))
        results.append((float(state.sums.loss), float(state.sums.grad_norm)))
    tolerance = 1e-2 if "GRADIENT_DTYPE=bfloat16" in settings else 1e-4
    assert results[1] == pytest.approx(results[0], rel=tolerance)
