"""Warm start: the layers that the weights are read from, and the parts of the state that continue or restart."""

import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from layers.errors import UsageError
from registry.build import build
from registry.records.snapshot import snapshot
from registry.resolve import resolve
from runners.main import main
from runners.session import Session
from runners.stacked_arrays import StackedArrays
from runners.training.checkpoints import Checkpoints
from runners.training.evaluate import evaluate
from runners.training.origins import warm_start
from runners.training.origins.growth import Growth, sources
from runners.training.origins.warm_start import begin, check_warm_start
from tests.support.references.models import same
from tests.support.run_folders import lines

SMOKE = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard"]
MORE = {  # the old layer of each new one; Smoke() has 2, 4 and 4 layers
    "tiny.StdlibTiny": [0, 0, 1],
    "vq.VQTiny": [0, 0, 0, 1, 1, 2, 2, 2, 3, 3],
    "gshard.MoeLm8x2B": [0, 1, 0, 1, 2, 3, 2, 3],  # every other layer has experts
}


def session_of(name, *sets):
    return Session(resolve(name, sets, smoke=True))


def save(session, folder, step=7):
    """A checkpoint of weights and slots that all differ; returns its state."""
    with session.placed():
        state = session.functions.init()
        place = lambda i, x: jax.device_put(jax.numpy.full(x.shape, i, x.dtype) + _layer_numbers(x), x.sharding)
        leaves, tree = jax.tree.flatten((state.variables, state.optimizer))
        variables, optimizer = jax.tree.unflatten(tree, [place(7 * i % 251, leaf) for i, leaf in enumerate(leaves)])
        state = state.replace(variables=variables, optimizer=optimizer, step=state.step + step)
        checkpoints = Checkpoints(folder)
        checkpoints.save(step, state, {"tokens_seen": 99, "input": {"next_batch": step}}, loss=None)
        checkpoints.close()
    return state


def _layer_numbers(x):
    """0, 1, 2, ... along the first dimension."""
    numbers = np.arange(x.shape[0] if x.ndim else 1) % 64
    return numbers.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype) if x.ndim else np.zeros((), x.dtype)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    folder = tmp_path_factory.mktemp("warm") / "small"
    sets = [f"--set={s}" for s in ("NUM_STEPS=4", "SAVE_EVERY=2", "WARMUP_STEPS=1", "EVAL_EVERY=none")]
    assert main([*SMOKE, *sets, f"--workdir={folder}"]) == 0
    return folder


def test_the_same_depth_begins_at_the_state_of_the_other_run(trained, tmp_path, capsys):
    warm = f"WARM_START={trained}"
    session = session_of("tiny.StdlibTiny", warm)
    with session.placed():
        state, origin = begin(session)
        known = next(line for line in lines(trained) if line["split"] == "validation")
        assert evaluate(session, state.variables, "validation")["loss"] == known["loss"]
        batch = session.host_batches.put(session.train.input.batch(0))
        first = session.functions.metrics_of(state.variables, batch)
    assert origin.sentence == f"Weights from {trained} (step 4)"
    sets = [f"--set={s}" for s in (warm, "NUM_STEPS=1", "LOG_EVERY=1", "WARMUP_STEPS=0")]
    assert main([*SMOKE, *sets, f"--workdir={tmp_path}"]) == 0
    assert origin.sentence in capsys.readouterr().out
    line = lines(tmp_path)[0]
    assert line["loss"] == pytest.approx(float(first.loss / first.weight), rel=1e-6), "data restart"
    assert (line["step"], line["tokens_seen"]) == (1, 8 * 32)
    assert line["learning_rate"] == pytest.approx(3e-3), "so does the schedule"


@pytest.mark.parametrize(("name", "optimizer"), [(next(iter(MORE)), False), *((name, True) for name in MORE)])
def test_layers_are_repeated(name, optimizer, tmp_path):
    old = save(session_of(name), tmp_path)
    sets = [f"WARM_START={tmp_path}", f"NUM_LAYERS={len(MORE[name])}", f"WARM_START_OPTIMIZER={optimizer}"]
    session = session_of(name, *sets)
    with session.placed():
        new, origin = begin(session)
        fresh = session.functions.init()
    assert {"vq.VQTiny": "codebooks"}.get(name, "params") in new.variables
    require_layers(old, new, MORE[name], optimizer)
    assert jax.tree.map(lambda x: x.sharding, new) == session.abstract.state_shardings
    what, before = "Weights and optimizer" if optimizer else "Weights", resolve(name, smoke=True).NUM_LAYERS
    assert origin.sentence.startswith(f"{what} from {tmp_path} (step 7), {before} layers grown to {len(MORE[name])}")
    rest = [state.replace(variables=None, optimizer=None) for state in (new, fresh)]
    assert same(*rest)
    assert optimizer or same(new.optimizer, fresh.optimizer)


def grown(was, layers):
    return np.asarray(was)[[j * was.shape[0] // layers for j in range(layers)]]


WINDOWS = "ATTENTION_WINDOW=6+none"  # layers of equal shapes
EXPERTS = "FFN=experts+dense"
FACTORS = ["OPTIMIZER=adafactor", "task.optimizer.min_dim_size_to_factor=8", "NORM_SCALE=scalar"]  # slots of all shapes


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["NUM_LAYERS=5", WINDOWS], ["NUM_LAYERS=8", WINDOWS], [0, 1, 0, 1, 2, 3, 4, 3]),
        (["NUM_LAYERS=4", EXPERTS, *FACTORS], ["NUM_LAYERS=7", EXPERTS, *FACTORS], [0, 1, 0, 1, 2, 3, 2]),
        (["NUM_LAYERS=3", "FFN=dense+experts+experts"], ["NUM_LAYERS=5", "FFN=dense+4*experts"], [0, 1, 1, 2, 2]),
        (["NUM_LAYERS=2"], ["NUM_LAYERS=3", WINDOWS], [0, 0, 1]),
    ],
)
def test_layers_of_patterns_and_remainders(before, after, expected, tmp_path):
    """Each layer begins as one of its kind, across the arrays of scanned stacks, and so do its moments."""
    old = save(session_of("tiny.StdlibTiny", *before), tmp_path)
    (tmp_path / "experiment.json").write_text(json.dumps(snapshot(resolve("tiny.StdlibTiny", before, smoke=True))))
    session = session_of("tiny.StdlibTiny", *after, f"WARM_START={tmp_path}", "WARM_START_OPTIMIZER=true")
    with session.placed():
        new, origin = begin(session)
    require_layers(old, new, expected, slots=True)
    assert f"layers grown to {len(expected)}" in origin.sentence


def require_layers(old, new, sources, slots):
    """Asserts that the arrays of each layer are those of its source, and that arrays outside of layers are equal."""
    parts = lambda state: {"variables": state.variables} | ({"optimizer": state.optimizer} if slots else {})
    was, now = (of_layers(parts(state)) for state in (old, new))
    for layer, source in zip(now, [was[source] for source in sources], strict=True):
        assert layer.keys() == source.keys()
        assert all(np.array_equal(layer[name], source[name]) for name in layer)
    others = [{path: leaf for path, leaf in warm_start._leaves(parts(state)) if "/stack/" not in path and
               not path.endswith("/count")} for state in (old, new)]  # fmt: skip
    assert same(*others)


def of_layers(state):
    """The arrays of each layer, by name."""
    found = dict(warm_start._leaves(state))
    arrays = StackedArrays({path: leaf.shape for path, leaf in found.items()})
    return [
        {name: found[paths[layer.place]][layer.index] for name, paths in arrays.paths.items() if layer.place in paths}
        for layer in arrays.layers
    ]


def test_layers_of_the_published_runs():
    of = lambda layers: sources(["same"] * 18, ["same"] * layers)
    assert of(24)[:10] == [0, 0, 1, 2, 3, 3, 4, 5, 6, 6]
    assert of(36) == [layer for layer in range(18) for _ in range(2)]
    assert of(18) == list(range(18))
    assert of(17) is None


@pytest.mark.parametrize(
    ("before", "after", "layers", "expected"),
    [
        ({"A": (6, None), "B": 1}, {"A": (12, None), "B": 2}, (4, 6), [0, 1, 0, 1, 2, 3]),  # other values, same form
        ({"A": (6, 6, None)}, {"A": (6, None)}, (3, 6), [0, 0, 1, 1, 2, 2]),  # another form: the plain rule
        ({"A": (6, None)}, {"A": (None, 6, 6)}, (4, 4), [0, 1, 2, 3]),  # no growth
        ({"A": (6, None), "C": (1, 2)}, {"A": None}, (2, 3), [0, 0, 1]),
    ],
)
def test_patterns_distinguish_layers_of_equal_shapes(before, after, layers, expected):
    old, new = (StackedArrays({"variables/params/stack/block/ffn/in_mf": (number, 2, 8)}) for number in layers)
    growth = Growth.of(old, new, before, after)
    assert growth.sources == expected
    plain = [j * layers[0] // layers[1] for j in range(layers[1])]
    shown = "" if expected == plain else f" ({', '.join(map(str, expected))})"
    assert str(growth) == ("" if layers[0] == layers[1] else f"{layers[0]} layers grown to {layers[1]}{shown}")


def test_layers_of_other_weights_at_the_same_depth_are_refused():
    stack = "variables/params/stack/block"
    old = StackedArrays({f"{stack}/blocks_0/ffn/in_mf": (1, 2, 8), f"{stack}/blocks_1/ffn/in_mf": (1, 2, 4)})
    new = StackedArrays({f"{stack}/blocks_0/ffn/in_mf": (1, 2, 4), f"{stack}/blocks_1/ffn/in_mf": (1, 2, 8)})
    with pytest.raises(UsageError, match="has other weights in layer 0 than here"):
        Growth.of(old, new, {}, {})


def test_blocks_without_arrays_are_layers():
    arrays = StackedArrays({"variables/params/stack/block/blocks_1/ffn/in_mf": (2, 2, 8)})
    assert [(layer.place.block, layer.index) for layer in arrays.layers] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_kind_that_is_missing_here_is_refused():
    stack = "variables/params/stack/block"
    old = StackedArrays({f"{stack}/blocks_0/ffn/in_mf": (1, 2, 8), f"{stack}/blocks_1/ffn/in_mf": (1, 2, 4)})
    new = StackedArrays({f"{stack}/ffn/in_mf": (3, 2, 8)})
    message = "has 1 layers with the weights of its layer 1, and this experiment has 0. Set patterns over layers as"
    with pytest.raises(UsageError, match=message):
        Growth.of(old, new, {}, {})


@pytest.mark.parametrize("name", ["gpt.GptXL", "gpt.GptXXL"])
def test_the_published_runs_differ_in_layers_alone(name):
    rows = [
        [(r.path, r.shape[r.stacked :]) for r in build(resolve(n).Task(), "task").table] for n in ("GptLarge", name)
    ]
    assert rows[0] == rows[1]


SEVERAL = ("OPTIMIZER=muon", "EMA_DECAY=0.9", "MOMENT_DTYPE=int8", "MODEL_DIM=64", "OPTIMIZERS.key_mkd=none")


@pytest.mark.parametrize(
    "sets",
    [
        ["OPTIMIZER=adamw"],
        ["OPTIMIZER=adafactor", "task.optimizer.min_dim_size_to_factor=8"],
        pytest.param(SEVERAL, marks=pytest.mark.slow),
    ],
)
def test_moments_and_their_count_continue_and_the_schedule_restarts(sets, tmp_path):
    sets = [*sets, "TIE_EMBEDDINGS=true"]
    old = save(session_of("tiny.StdlibTiny", *sets), tmp_path)
    more = [f"WARM_START={tmp_path}", "WARM_START_OPTIMIZER=true", "NUM_LAYERS=4", "DEVICE_MESH_SHAPE=8,1"]
    session = session_of("tiny.StdlibTiny", *sets, *more)
    with session.placed():
        new, _ = begin(session)
    schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)
    pairs = [jax.tree.leaves(state.optimizer, is_leaf=schedule) for state in (old, new)]
    kinds = set()
    for was, now in zip(*pairs, strict=True):
        if schedule(now):
            kinds.add("schedule")
            assert int(now.count) == 0
        elif was.shape == now.shape:
            kinds.add("as it was" if was.ndim else "count")
            assert same(was, now)
        else:
            kinds.add("grown")
            assert same(grown(was, 4), now)
    assert kinds == {"schedule", "as it was", "count", "grown"}
    assert int(new.step) == 0
    has_codes = any(leaf.dtype == np.uint8 for leaf in jax.tree.leaves(new.optimizer))
    assert has_codes == ("MOMENT_DTYPE=int8" in sets)


@pytest.mark.slow
def test_the_rates_of_a_schedule_free_average_restart(tmp_path):
    sets = ["SCHEDULE_FREE=true", "SCHEDULE=constant"]
    save(session_of("tiny.StdlibTiny", *sets), tmp_path)
    session = session_of("tiny.StdlibTiny", *sets, f"WARM_START={tmp_path}", "WARM_START_OPTIMIZER=true")
    with session.placed():
        new, _ = begin(session)
    assert int(new.optimizer.step_count) == 1
    assert float(new.optimizer.max_lr) > 0


def test_growing_sends_nothing_between_devices(tmp_path):
    """Each device grows its own parts."""
    session = session_of("tiny.StdlibTiny", "NUM_LAYERS=4", "DEVICE_MESH_SHAPE=2,4")
    of_two = lambda path, leaf: (2, *leaf.shape[1:]) if "/stack/" in path else leaf.shape
    new = dict(warm_start._leaves({"variables": session.abstract.state.variables}))
    before, after = ({path: shape(path, leaf) for path, leaf in new.items()}
                     for shape in (of_two, lambda _, leaf: leaf.shape))  # fmt: skip
    growth = Growth.of(StackedArrays(before), StackedArrays(after), {}, {})
    old = {path: jax.ShapeDtypeStruct(before[path], leaf.dtype, sharding=leaf.sharding) for path, leaf in new.items()}
    with session.placed():
        grow = functools.partial(warm_start._grown, session, growth)
        program = jax.jit(grow, out_shardings=session.abstract.state_shardings).lower(old).compile().as_text()
    assert "all-" not in program
    assert " xor(" not in program, "initial weights are not drawn"
    assert " xor(" in session.functions._init.lower(session.seed).compile().as_text()


def test_a_run_reads_the_other_one_once(trained, tmp_path, capsys):
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(trained, source)
    sets = [f"--set={s}" for s in (f"WARM_START={source}", "WARM_START_CHECKPOINT=2", "NUM_STEPS=3", "EVAL_EVERY=none")]
    assert main([*SMOKE, *sets, f"--workdir={run}"]) == 0
    assert f"Weights from {source} (step 2)" in capsys.readouterr().out
    shutil.rmtree(source)
    longer = "--set=train.num_steps=5"
    assert main([f"--workdir={run}", "--no-tensorboard", longer]) == 0
    out = capsys.readouterr().out
    assert "Resumed at step 3" in out
    assert "Weights from" not in out
    record = json.loads((run / "experiment.json").read_text())
    assert [(start["step"], start["command"][3:]) for start in record["starts"]] == [
        (0, [*SMOKE, *sets, f"--workdir={run}"]),
        (3, [f"--workdir={run}", "--no-tensorboard", longer]),
    ]
    known = {"workdir": str(source), "step": 2, "experiment": "tiny.StdlibTiny", "optimizer": False}
    assert record["parent"].items() >= known.items()
    assert "tokens" in record["starts"][0]["data"]["train.input"]["fingerprint"]
    new = tmp_path / "new"
    assert main([*SMOKE, *sets, f"--workdir={new}"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not new.exists()


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["NUM_LAYERS=1"], r"has more layers than this experiment \(2 there and 1 here\). Set NUM_LAYERS=2 or above."),
        (
            ["NUM_LAYERS=3", "FFN=dense+none"],
            "has 0 layers with the weights of layer 1 of this experiment, and this experiment has 1. Set patterns over",
        ),
        (["MODEL_DIM=64"], "params/embedding/embedding_vm is 256x32 there and 256x64 here; only the number of"),
        (["POSITIONS=learned"], "lacks params/positions/position_tm, which is 32x32 here."),
        (["TIE_EMBEDDINGS=true"], "has params/head/unembedding_mv, 32x256, which this experiment lacks."),
        (
            ["OPTIMIZER=lion", "WARM_START_OPTIMIZER=true"],
            "has optimizer/1/nu/.*, which this experiment lacks. Set WARM_START_OPTIMIZER=false to begin with",
        ),
        (["CLIP_NORM=none", "WARM_START_OPTIMIZER=true"], "Set WARM_START_OPTIMIZER=false to begin with a fresh opt"),
        (["WARM_START_CHECKPOINT=3"], "Unknown checkpoint '3'. Choose last, best or one of 2, 4"),
        (["WARM_START=no/such"], "WARM_START = no/such: The workdir 'no/such' does not exist"),
    ],
)
def test_what_does_not_fit(trained, tmp_path, sets, message):
    session = session_of("tiny.StdlibTiny", f"WARM_START={trained}", *sets)
    for call in (lambda: begin(session), lambda: check_warm_start(session)):
        with pytest.raises(UsageError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_folders_without_complete_checkpoints(trained, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "copy")
    session = session_of("tiny.StdlibTiny", f"WARM_START={copy}")
    (largest,) = sorted(Path(copy, "checkpoints", "4", "state").rglob("_METADATA"))
    largest.unlink()
    with pytest.raises(UsageError, match=r"copy: checkpoint 4 cannot be read: ") as error:
        begin(session)
    assert "\n" not in str(error.value)
    shutil.rmtree(copy / "checkpoints" / "2")
    shutil.rmtree(copy / "checkpoints" / "4")
    with pytest.raises(UsageError, match=r"has no checkpoint yet\. Train first"):
        begin(session)


def with_vocabulary(trained, folder, **record):
    """The trained run, as if it had learned with another vocabulary of the same size."""
    shutil.copytree(trained, folder)
    experiment = json.loads((folder / "experiment.json").read_text())
    experiment["vocabulary"] |= {"is": "SentencePiece 'there.model'", "fingerprint": "0123456789abcdef", **record}
    (folder / "experiment.json").write_text(json.dumps(experiment))
    return folder


def test_tokens_that_encode_other_text(trained, tmp_path, capsys):
    other = with_vocabulary(trained, tmp_path / "other")
    run = [*SMOKE, f"--set=WARM_START={other}", "--set=NUM_STEPS=1", "--set=WARMUP_STEPS=0"]
    run.append(f"--workdir={tmp_path / 'run'}")
    assert main(run) == 2
    error = capsys.readouterr().err
    assert "the tokens of SentencePiece 'there.model' (fingerprint 01234567), and this run those of bytes (" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert main([*run, "--allow_changes"]) == 0
    out = capsys.readouterr().out
    assert "Continuing because of --allow_changes." in out
    assert f"Weights from {other} (step 4)" in out
    assert main(run) == 0, "a run that resumes from its own checkpoints does not read the other run again"


def test_tokens_that_encode_no_text_are_not_compared(trained, tmp_path):
    ids = with_vocabulary(trained, tmp_path / "ids", is_text=False)
    check_warm_start(session_of("tiny.StdlibTiny", f"WARM_START={ids}"))
    older = with_vocabulary(trained, tmp_path / "older")
    experiment = json.loads((older / "experiment.json").read_text())
    del experiment["vocabulary"]["is_text"]
    (older / "experiment.json").write_text(json.dumps(experiment))
    session = session_of("tiny.StdlibTiny", f"WARM_START={older}")
    with pytest.raises(UsageError, match="has the tokens of SentencePiece"):
        check_warm_start(session)
    del experiment["vocabulary"]
    (older / "experiment.json").write_text(json.dumps(experiment))
    check_warm_start(session)
