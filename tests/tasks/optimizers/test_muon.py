"""Muon and methods by weight: updates of each matrix, which method a weight has, weights that are not trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.errors import UsageError
from registry.checks import check
from registry.overrides import override
from tasks.gradients import gradient_of
from tasks.optimizers.muon import matrix_of
from tests.support.references.models import Small, batch_of, task_of, train_losses, variables_of

EXPERTS = {"FFN": "experts", "NUM_EXPERTS": 4, "NUM_GROUPS": 2, "NUM_KV_HEADS": 2}


def orthogonalized(matrix):
    """Five Newton-Schulz steps (Jordan et al. 2024), of a matrix no taller than wide."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T).T
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def momentum(gradients, beta=0.95):
    """Nesterov's momentum, corrected for its start, after gradients of one weight."""
    total, count = np.zeros_like(gradients[0]), len(gradients)
    for gradient in gradients:
        total = beta * total + (1 - beta) * gradient
    return beta * total / (1 - beta ** (count + 1)) + (1 - beta) * gradients[-1] / (1 - beta**count)


# How the matrices of a weight are arranged, and the share of its inputs that one matrix has.
MATRICES = {
    "query_mnd": ("lmnd->lnmd", 1),
    "key_mkd": ("lmkd->lkmd", 1),
    "value_mkd": ("lmkd->lkmd", 1),
    "attention_out_ndm": ("lndm->lndm", 1 / 4),
    "expert_in_emf": ("lemf->lemf", 1),
    "expert_out_efm": ("lefm->lefm", 1),
    "router_me": ("lme->lme", 1),
}
SCALES = {
    "rms": lambda inputs, outputs, share: 0.2 * np.sqrt(max(inputs, outputs)),
    "shape": lambda inputs, outputs, share: np.sqrt(max(1, outputs / inputs)),
    "spectral": lambda inputs, outputs, share: share * np.sqrt(outputs / inputs),
}


@pytest.mark.parametrize("scale", SCALES)
def test_an_update_orthogonalizes_each_matrix(scale):
    """Layers, heads and experts each have a matrix of their own."""
    plain = {"WEIGHT_DECAY": 0.0, "CLIP_NORM": None, "SCHEDULE": "constant", "WARMUP_STEPS": 0, "LEARNING_RATE": 1.0}
    task = task_of(OPTIMIZER="muon", MUON_SCALE=scale, **plain, **EXPERTS)
    table, params = task.weight_table(), variables_of(task)["params"]
    optimizer = task.optimizer.build(table)
    gradients = [jax.tree.map(lambda w, n=n: jnp.sin(w * (40 + n)), params) for n in range(2)]
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
    seen = set()
    for row, update, *of_weight in zip(*map(jax.tree.leaves, (table.params, updates, *gradients)), strict=True):
        if row.method != "muon":
            continue
        order, share = MATRICES[row.key]
        arranged = [np.einsum(order, np.asarray(each, np.float64)) for each in (update, *of_weight)]
        *_, inputs, outputs = arranged[0].shape
        factor = SCALES[scale](inputs, outputs, share)
        for found, *of_matrix in zip(*(each.reshape(-1, inputs, outputs) for each in arranged), strict=True):
            expected = -factor * orthogonalized(momentum(of_matrix))
            np.testing.assert_allclose(found, expected, atol=1e-6 * factor)
        seen.add(row.key)
    assert seen == set(MATRICES)


def test_an_embedding_changes_equally_at_every_width():
    for width in (16, 64):
        knobs = {"MODEL_DIM": width, "OPTIMIZERS": {"embedding": "muon"}, "MUON_SCALE": "spectral"}
        row = next(row for row in task_of(**knobs).weight_table() if row.role == "embedding")
        matrix = matrix_of(row)
        update = matrix.scale("spectral") * orthogonalized(np.random.default_rng(0).standard_normal(matrix.shape))
        assert np.sqrt(np.mean(update**2)) == pytest.approx(1, rel=0.2)


def methods(**knobs):
    """The method of each weight, by its name."""
    return {row.key: row.method for row in task_of(**knobs).weight_table()}


def test_muon_has_the_matrices_between_hidden_layers():
    found = methods(OPTIMIZER="muon", NORM="layer", BIASES=("qkv", "ffn", "norm"))
    assert {key for key, method in found.items() if method == "muon"} == {
        "query_mnd", "key_mkd", "value_mkd", "attention_out_ndm", "ffn_in_mf", "ffn_out_fm",
    }  # fmt: skip
    assert set(found.values()) == {"muon", "adamw"}


def test_a_name_comes_before_letters_and_these_before_a_role():
    chosen = {"hidden": "lion", "_mkd": "sgd", "key_mkd": "none", "embedding": "muon"}
    found = methods(OPTIMIZER="adamw", OPTIMIZERS=chosen)
    assert (found["ffn_in_mf"], found["value_mkd"], found["key_mkd"]) == ("lion", "sgd", "none")
    assert (found["embedding_vm"], found["norm_scale_m"]) == ("muon", "adamw")


def test_weights_without_a_matrix_keep_the_method_of_all():
    assert methods(OPTIMIZER="lion", OPTIMIZERS={"hidden": "muon"})["norm_scale_m"] == "lion"


def test_state_of_a_layer_has_no_method():
    assert {row.method for row in task_of(MIXER="vq", POSITIONS="sinusoidal").weight_table() if not row.learned} == {
        "none"
    }


def test_vectors_have_no_matrix():
    rows = {row.key: row for row in task_of(**EXPERTS, NORM="layer", BIASES=("qkv",)).weight_table()}
    assert [key for key, row in rows.items() if row.learned and matrix_of(row) is None] == [
        key for key, row in rows.items() if row.role in ("scale", "bias")
    ]


FROZEN = {"OPTIMIZERS": {"embedding": "none", "ffn_in_mf": "none", "key_mkd": "none"}}


NARROW = {"PARAM_DTYPE": "bfloat16", "MASTER_WEIGHTS": True, "DTYPE": "bfloat16"}


@pytest.mark.parametrize(("method", "dtypes"), [("muon", {}), ("muon", NARROW), ("adafactor", {})])
def test_weights_that_are_not_trained(method, dtypes):
    knobs = {"OPTIMIZER": method, "LEARNING_RATE": 0.1, **FROZEN, **dtypes}
    task = task_of(**knobs)
    table, initial = task.weight_table(), variables_of(task)
    _, state = train_losses(2, **knobs)
    moved = table.tree(lambda row: row.key)
    moved = jax.tree.map(lambda key, a, b: (key, not np.array_equal(a, b)), moved, initial, state.variables)
    of_key = dict(jax.tree.leaves(moved, is_leaf=lambda node: isinstance(node, tuple)))
    assert {key for key, is_moved in of_key.items() if not is_moved} == {"embedding_vm", "ffn_in_mf", "key_mkd"}
    slots = {row.key for row, _, _ in task.optimizer.slots(table, state.optimizer) if row is not None}
    assert slots == set(of_key) - {"embedding_vm", "ffn_in_mf", "key_mkd"}


def test_no_gradient_is_computed_of_them():
    def program(**knobs):
        task = task_of(**knobs)
        batch, rngs = batch_of(), (jax.random.key(0), jax.random.key(1))
        gradient = lambda variables: gradient_of(task, variables, batch, None, rngs, None)[0]
        return jax.jit(gradient).lower(variables_of(task)).compile()

    every, some = program(), program(**FROZEN)
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(some.out_info)}
    assert not names & {"embedding_vm", "ffn_in_mf", "key_mkd"}
    products = [text.as_text().count(" dot(") for text in (every, some)]
    assert products[1] == products[0] - 3, "one of each matrix"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"OPTIMIZERS": {"qury_mnd": "none"}},
            "names 'qury_mnd', which no weight has as its name.* Did you mean 'query_mnd'",
        ),
        (
            {"OPTIMIZERS": {"norm_scale_m": "muon"}},
            r"OPTIMIZERS.norm_scale_m = muon needs a matrix .* shape is \(16,\)",
        ),
        ({"OPTIMIZERS": {"scale": "muon"}}, "OPTIMIZERS.scale = muon of .* has no effect: the weights are vectors"),
        (
            {"OPTIMIZERS": {"_mkd": "lion", "key_mkd": "sgd", "value_mkd": "sgd"}},
            "OPTIMIZERS._mkd = lion of .* has no effect: .* have an entry of their own",
        ),
        ({"OPTIMIZERS": {"hidden": "moun"}}, "OPTIMIZERS takes a dict of str to one of"),
        (
            {"OPTIMIZER": "muon", "MUON_SCALE": "rms", "PARAMETRIZATION": "mup", "BASE_WIDTH": 16},
            "MUON_SCALE = rms does not work with PARAMETRIZATION = mup",
        ),
    ],
)
def test_bad_requests(knobs, message):
    with pytest.raises(UsageError, match=message):
        check(Small.derive(**knobs)())


def test_a_mapping_is_a_copy_in_each_class():
    entry = Small.derive(OPTIMIZERS={"embedding": "none"})
    with pytest.raises(TypeError):
        entry.OPTIMIZERS["embedding"] = "sgd"
    assert override(entry, ["OPTIMIZERS.head=sgd"]).OPTIMIZERS == {"embedding": "none", "head": "sgd"}
    assert entry.OPTIMIZERS == {"embedding": "none"}
