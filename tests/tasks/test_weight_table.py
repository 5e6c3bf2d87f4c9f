import fiddle as fdl
import flax.linen as nn
import jax
import pytest

from layers.errors import SpecError
from layers.specs import P
from registry.build import build
from tasks.weight_table import WeightTable, check_spec, shards
from tests.support.references.models import Small, task_of, variables_of

MESH = {"data": 2, "model": 4}


def test_rows_agree_with_the_arrays():
    task = task_of(BIASES=("qkv", "ffn", "norm"), NORM="layer", TIE_EMBEDDINGS=False)
    variables = variables_of(task)
    arrays = {
        "/".join(part.key for part in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
    }
    table = task.weight_table()
    assert {row.path: row.shape for row in table} == {path: leaf.shape for path, leaf in arrays.items()}
    assert {row.path: row.bytes for row in table} == {path: leaf.nbytes for path, leaf in arrays.items()}
    roles = {row.key: row.role for row in table}
    assert roles["embedding_vm"] == "embedding"
    assert roles["unembedding_mv"] == "output"
    assert roles["query_mnd"] == roles["ffn_out_fm"] == "hidden"
    assert roles["norm_bias_m"] == roles["query_bias_nd"] == "bias"
    assert {row.role for row in table if row.decay} == {"embedding", "hidden", "output"}


@pytest.mark.parametrize("key", ["query_mnd", "ffn_in_mf", "ffn_out_fm", "attention_out_ndm", "embedding_vm"])
def test_initial_standard_deviation_is_that_of_the_row(key):
    knobs = {"MODEL_DIM": 256, "NUM_HEADS": 4, "FFN_DIM": 512}
    task = task_of(**knobs)
    row = next(row for row in task.weight_table() if row.key == key)
    leaves = {path[-1].key: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables_of(task))}
    scale = float(row.init.split("(")[1].rstrip(")"))
    expected = scale if row.init.startswith("normal") else scale * row.fan_in**-0.5
    assert float(leaves[key].std()) == pytest.approx(expected, rel=0.03)
    assert row.fan_in == {"ffn_out_fm": 512, "embedding_vm": 1}.get(key, 256)


def test_bytes_per_device_are_those_of_live_arrays():
    task = task_of()
    mesh = jax.make_mesh((2, 4), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    table = task.weight_table()
    shardings = table.tree(lambda row: jax.sharding.NamedSharding(mesh, row.spec))
    arrays = jax.device_put(variables_of(task), shardings)
    held = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(arrays)]
    assert held == [row.bytes_per_device(MESH) for row in table]


def test_no_array_is_made(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an array was made")

    monkeypatch.setattr(jax.Array, "block_until_ready", refuse, raising=False)
    big = task_of(MODEL_DIM=65536, NUM_HEADS=64, FFN_DIM=262144, NUM_LAYERS=100)
    assert sum(row.size for row in big.weight_table()) > 5e12


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (P("data"), (4, 4), "has 1 entries for the shape"),
        (P("modle", None), (4, 4), "names 'modle'. Did you mean 'model'"),
        (P("data", "data"), (4, 4), "uses mesh axis 'data' twice"),
        (P(None, "model"), (4, 6), "Dimension 6 of w.*into 4 parts"),
        (P(("data", "model"), None), (12, 6), "Dimension 12 of w.*into 8 parts"),
    ],
)
def test_bad_specs(spec, shape, message):
    with pytest.raises(SpecError, match=message):
        check_spec("w", spec, shape, MESH)


def test_shards_of_a_spec():
    assert shards(P(("data", "model"), None), MESH) == 8
    assert shards(P(None, "model"), MESH) == 4
    check_spec("w", P(("data", "model"), None), (8, 3), MESH)


def test_a_weight_without_the_helper_is_refused():
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, name="dense")(x)

    config = Small().Task()
    config.model.final_norm = fdl.Config(Plain)
    with pytest.raises(SpecError, match=r"'params/final_norm/dense/.*' was made without layers.weights.weight"):
        build(config, "task").weight_table()


def test_table_is_iterable_and_sized():
    table = task_of().weight_table()
    assert isinstance(table, WeightTable)
    assert len(table) == len(list(table)) == 10
