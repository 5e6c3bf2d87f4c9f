"""The first value that is not finite is named: its layer, its part of the model, and its rows of the batch."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.auxiliary import RowSummary
from layers.specs import P
from registry.templates.decoder import DecoderLm
from runners.session import Session
from runners.training.health.first_cause import Summaries, find, record
from runners.training.health.non_finite import summaries
from tasks.step_summary import ArraySummary, UpdateSummary
from tests.support.programs import compiled_anew

MODEL = {
    "NUM_LAYERS": 4,
    "MODEL_DIM": 16,
    "NUM_HEADS": 2,
    "FFN_DIM": 32,
    "VOCAB_SIZE": 64,
    "SEQ_LEN": 16,
    "BATCH_SIZE": 16,
    "DATA": "synthetic",
}
EXPERTS = {"FFN": ("dense", "experts"), "NUM_EXPERTS": 4, "NUM_GROUPS": 4}
PIPELINE = {"MESH_AXES": ("stage", "data", "model"), "DEVICE_MESH_SHAPE": (2, 2, 2), "STACK": P("stage")}
EIGHT = {"DEVICE_MESH_SHAPE": (4, 2), "LAYOUT": "tensor_parallel"}
VQ = {"MIXER": "vq", "POSITIONS": "distance", "BLOCK_LEN": 4, "NUM_CODES": 8}
CASES = {
    "dense": ({}, 2, "mixer"),
    "dense on 8 devices": (EIGHT, 1, "ffn"),
    "unrolled, recomputed": ({"UNROLL": 4, "REMAT": "full"}, 3, "ffn"),
    "accumulated": ({"GRADIENT_ACCUMULATION": 4, "DROPOUT": 0.1, "LOSS_CHUNK": 4}, 2, "ffn"),
    "experts": (EXPERTS, 3, "ffn"),
    "experts on 8 devices": (EXPERTS | {"DEVICE_MESH_SHAPE": (4, 2)}, 1, "ffn"),
    "vq": (VQ, 1, "mixer"),
    "vq on 8 devices": (VQ | EIGHT, 2, "mixer"),
    "pipeline": (PIPELINE, 3, "mixer"),
    "pipeline, ZeRO 3": (PIPELINE | {"ZERO_STAGE": 3, "PIPELINE_REPEATS": 2}, 2, "ffn"),
    "ZeRO 3": ({"DEVICE_MESH_SHAPE": (8, 1), "ZERO_STAGE": 3}, 0, "ffn"),
    "a remainder": ({"ATTENTION_WINDOW": (8, None), "NUM_LAYERS": 5}, 4, "mixer"),
    "chunks of rows": ({"TBPTT_LEN": 8}, 2, "mixer"),
    "parallel": ({"RESIDUAL": "parallel"}, 2, "ffn"),
}
UNTIED = {"TIE_EMBEDDINGS": False}
HEAD = "params/head/unembedding_mv"
NAMES = {"mixer": "the mixer", "ffn": "the feed-forward layer"}


def found(change=lambda variables: variables, **knobs):
    """Summaries of the first update after `change` of the weights by path, the shapes of the weights, and the batch."""
    experiment = DecoderLm.derive(**MODEL | {"DEVICE_MESH_SHAPE": (1, 1)} | knobs)()
    devices = jax.devices()[: int(np.prod(experiment.DEVICE_MESH_SHAPE))]
    session = Session(experiment, devices)
    with session.placed(), compiled_anew() if len(devices) > 1 else contextlib.nullcontext():
        batch, _ = next(session.host_batches.iterate(session.train.input))
        state = session.functions.init()
        paths = [row.path for row in session.task.weight_table()]
        leaves, tree = jax.tree.flatten(state.variables)
        changed = change(dict(zip(paths, leaves, strict=True)))
        state = state.replace(variables=jax.tree.unflatten(tree, [changed[path] for path in paths]))
        shapes = {row.path: row.shape for row in session.task.weight_table()}
        return summaries(session, state, batch), shapes, batch


def of_layer(variables, layer, part, pattern=1, first=0):
    """The path of a weight of a part of a layer, and its index there."""
    blocks = f"/blocks_{layer % pattern}/" if pattern > 1 else "/block/"
    path = next(path for path in variables if blocks in path and f"/{part}/" in path and "norm" not in path)
    return path, layer // pattern - first


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_layer_and_part_of_a_bad_weight_are_named(case):
    knobs, layer, part = CASES[case]

    def change(variables):
        layers = {path: w for path, w in variables.items() if path.startswith("params/stack/")}
        if case == "a remainder":  # layers 0 to 3 are two repeats of a pattern, layer 4 is another stack
            [path] = [p for p in layers if "stacks_1" in p and "/mixer/" in p and "norm" not in p][:1]
            index = 0
        else:
            path, index = of_layer(layers, layer, part, 2 if knobs.get("FFN") == EXPERTS["FFN"] else 1)
        return variables | {path: variables[path].at[index].set(jnp.nan)}

    known, shapes, _ = found(change, **knobs)
    cause = find(7, shapes, known)
    last = knobs.get("NUM_LAYERS", 4) - 1
    start = f"The loss of step 7 is not finite: the output of {NAMES[part]} of layer {layer} (of 0 to {last}) is the"
    assert cause.startswith(start), cause
    assert "all 16 rows of the batch" in cause
    layers = [output["layer"] for output in record(shapes, known)["outputs"] if output["rows"]]
    assert layers[0] == layer
    assert sorted(layers[:-2] if None in layers else layers, key=lambda x: (x is None, x)) == layers[:-2]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dense", "accumulated", "experts on 8 devices", "pipeline, ZeRO 3", "a remainder"])
def test_the_rows_of_a_bad_token_are_named(case):
    """They are the rows that have the token, each from its first place on."""
    knobs, _, _ = CASES[case]
    token = 5

    def change(variables):
        path = next(path for path in variables if "embedding" in path and path.endswith("_vm"))
        return variables | {path: variables[path].at[token].set(jnp.inf)}

    known, shapes, batch = found(change, **knobs)
    inputs = np.asarray(batch.inputs)
    expected = {row: int(np.argmax(inputs[row] == token)) for row in range(16) if (inputs[row] == token).any()}
    assert 0 < len(expected) < 16
    first = record(shapes, known)["outputs"][0]
    assert (first["output"], first["rows"]) == ("the embedding", expected)
    row = min(expected)
    assert f"from position {expected[row]} of row {row}" in find(1, shapes, known)
    assert find(1, shapes, known).startswith("The loss of step 1 is not finite: the output of the embedding is the")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "start"),
    [
        (1e10, "The gradient of step 3 is not finite, and the values before are: {} is the first in the backward pass"),
        (
            1.0,
            "The norm of the gradient of step 3 overflows float32, although all elements are finite: the largest is ",
        ),
    ],
)
def test_a_gradient_that_overflows_is_named_by_its_weight_and_layer(factor, start):
    """Layer 1 has the outputs of its size, from products of large and small weights, whose gradients are large."""
    name = "params/stack/block/ffn/ffn_out_fm"

    def change(variables):
        for path, scale in {"params/stack/block/ffn/ffn_in_mf": 1e37, name: 1e-37}.items():
            variables[path] = variables[path].at[1].multiply(scale)
        return variables | {HEAD: variables[HEAD] * factor}

    known, shapes, _ = found(change, ACTIVATION="relu", **UNTIED)
    cause = find(3, shapes, known)
    assert cause.startswith(start.format(f"{name} of layer 1")), cause
    assert f"{name} of layer 1" in cause


@pytest.mark.slow
def test_a_new_weight_that_overflows_is_named():
    rate = {"OPTIMIZER": "sgd", "BETA1": 0.0, "LEARNING_RATE": 3e38, "WARMUP_STEPS": 0, "CLIP_NORM": None}
    known, shapes, _ = found(lambda variables: variables | {HEAD: variables[HEAD] * 100}, **rate, **UNTIED)
    cause = find(1, shapes, known)
    assert cause.startswith("The new weights of step 1 are not finite, and the values before are: params/"), cause


@pytest.mark.slow
def test_an_update_that_is_finite_when_it_is_computed_again_is_a_fault_of_the_machine():
    known, shapes, _ = found()
    assert find(9, shapes, known).startswith("Step 9 was not finite, and is finite if it is computed again")


SHAPES = {
    "params/embedding/embedding_vm": (8, 4),
    "params/final_norm/scale_m": (4,),
    "params/stack/stacks_0/block/blocks_0/mixer/query_mnd": (2, 4, 1, 4),
    "params/stack/stacks_0/block/blocks_1/ffn/ffn_in_mf": (2, 4, 8),
    "params/stack/stacks_1/block/mixer/query_mnd": (1, 4, 1, 4),
}


def made_up(outputs=(), gradient=(), norm=1.0, objective=1.0):
    """Summaries in which some values are not finite: rows by path and layer, and elements by path and layer."""
    of_path = lambda shape: ArraySummary(np.zeros(shape, np.int32), np.ones(shape, np.float32))
    stacked = {path: (shape[0],) if "/stack/" in path else () for path, shape in SHAPES.items()}
    gradients = {path: of_path(shape) for path, shape in stacked.items()}
    for path, layer, count in gradient:
        gradients[path].bad[layer] = count
    weights = {path: of_path(shape) for path, shape in stacked.items()}
    found = {}
    for path, layers, layer, rows in outputs:
        found.setdefault(path, RowSummary(np.full((layers, 12), -1), np.ones((layers, 12))))
        found[path].first[layer, list(rows)] = list(rows.values())
    return Summaries(found, gradients, UpdateSummary(weights, np.float32(objective), np.float32(norm), np.int32(0)))


def test_layers_are_in_the_order_of_the_model():
    block = "stack/stacks_0/block/blocks_"
    later = ("stack/stacks_1/block/mixer_out", 1, 0, dict.fromkeys(range(12), 0))
    known = made_up([later, (f"{block}0/ffn_out", 2, 1, {5: 3, 9: 0}), (f"{block}1/mixer_in", 2, 1, {5: 3, 9: 0})])
    assert find(4, SHAPES, known) == (
        "The loss of step 4 is not finite: the output of the feed-forward layer of layer 2 (of 0 to 4) is the first "
        "that is not, in rows 5 and 9 of the batch, from position 3 of row 5"
    )
    known = dataclasses.replace(known, segments=np.full((12, 8), 2))
    assert find(4, SHAPES, known).endswith("from position 3 of row 5 (segment 2 of the row)")
    many = made_up([(f"{block}0/mixer_out", 2, 0, dict.fromkeys(range(11), 1))])
    assert "in rows 0, 1, 2, 3, 4, 5, 6, 7 and 3 more of the batch" in find(4, SHAPES, many)


def test_gradients_are_in_the_order_of_the_backward_pass():
    query, ffn, last = [path for path in SHAPES if "/stack/" in path]
    known = made_up(gradient=[(query, 0, 9), (query, 1, 9), (ffn, 0, 9), (ffn, 1, 4)])
    assert find(4, SHAPES, known) == (
        f"The gradient of step 4 is not finite, and the values before are: {ffn} of layer 3 is the first in the "
        f"backward pass with such elements (4)"
    )
    assert f"{last} of layer 4" in find(4, SHAPES, made_up(gradient=[(query, 1, 9), (last, 0, 1)]))
    assert "params/final_norm/scale_m is" in find(4, SHAPES, made_up(gradient=[("params/final_norm/scale_m", (), 1)]))
    assert "The norm of the gradient of step 4 overflows" in find(4, SHAPES, made_up(norm=np.inf))
    assert "although the outputs of all layers are" in find(4, SHAPES, made_up(objective=np.nan))
