"""Lower bounds of exchanges: closed forms on tables by hand, and never above the compiled program's roofline."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from layers.specs import P
from layers.weights.weight import Weight
from registry.records.snapshot import placed_task
from registry.resolve import resolve
from runners.machine.chips import CHIPS
from runners.planner.machine import Machine
from runners.planner.search.cases import Case
from runners.planner.search.exchanges import Exchanged, Update, exchanged, times, weights_with_gradient
from runners.planner.search.plans import Plans
from runners.reports.results import Results
from tasks.weight_table import WeightTable
from tasks.zero import Zero

LAYERS, M, F = 4, 8, 32
MESH = {"data": 4, "model": 2}
CHIP = dataclasses.replace(CHIPS["h100"], link_bandwidth=1e3, network_bandwidth=1e2)


def row(name="ffn_in_mf", spec=P(None, None, "model"), shape=(M, F), collection="params") -> WeightTable:
    """A table of one weight of stacked layers."""
    value = jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32)
    of: dict[str, Any] = {"key": name, "spec": spec, "role": "hidden", "init": "", "stddev": 1.0, "fan_in": M}
    return WeightTable({collection: {name: Weight(value, used=shape, **of)}}).mapped(TASK.optimizer.assign)


TASK = placed_task(resolve("DenseLm8B2x2", smoke=True), MESH)[0]


def update(table: WeightTable, *, stage: int | None = 0, count: int = 1, **fields) -> Update:
    zero = None if stage is None else Zero(stage=stage, axis="data")
    task = dataclasses.replace(TASK, zero=zero, gradient_accumulation=count)
    placed = table if zero is None else zero.place(table, MESH)
    paths = {one.path for one in table}
    of: dict[str, Any] = {"with_gradient": paths, "tokens": 10**6, "width": 2, "unroll": 1} | fields
    return Update(task=task, table=placed, **of)


N = LAYERS * M * F


@pytest.mark.parametrize(
    ("stage", "count", "bytes_per_number"),
    [(0, 1, 8), (0, 3, 8), (1, 1, 8), (1, 3, 8), (2, 3, 3 * 4 + 4), (3, 1, 4 + 2 * 2), (3, 3, 3 * 4 + 3 * 2 * 2)],
)
def test_a_stage_sums_gradients_and_gathers_weights(stage, count, bytes_per_number):
    (found,) = exchanged(update(row(), stage=stage, count=count), MESH)
    assert (found.axes, found.bytes, found.is_explicit) == (("data",), bytes_per_number * N, True)


@pytest.mark.parametrize(
    ("fields", "bytes_per_number"),
    [({"unroll": 4}, 4 + 2), ({"width": 4}, 4 + 2 * 4), ({"unroll": 2}, 4 + 2 * 2)],
)
def test_layers_without_a_loop_and_other_dtypes(fields, bytes_per_number):
    (found,) = exchanged(update(row(), stage=3, **fields), MESH)
    assert found.bytes == bytes_per_number * N


@pytest.mark.parametrize(
    "left_out",
    [
        update(row(collection="codebooks")),
        update(row(), with_gradient=()),
        update(row("expert_in_emf", P(None, "data", None, None), shape=(4, M, F))),
        update(row(spec=P(None, "data", "model")), stage=None),
        update(row("expert_in_emf", P(None, None, None, None), shape=(4, M, F)), stage=None),
    ],
)
def test_weights_without_known_exchanges(left_out):
    assert list(exchanged(left_out, MESH)) == []


def test_the_compiler_sums_in_the_dtype_of_layers_or_gathers_tokens():
    (found,) = exchanged(update(row(), stage=None), MESH)
    assert (found.bytes, found.is_explicit) == (2 * 2 * N, False)
    (found,) = exchanged(update(row(), stage=None, tokens=3), MESH)
    assert found.bytes == 2 * 3 * LAYERS * M


def test_a_weight_that_another_axis_does_not_split_may_be_exchanged_along_it():
    (found,) = exchanged(update(row(spec=P(None, None, None))), MESH)
    assert isinstance(found, Exchanged)
    assert not found.is_explicit


def test_times_on_one_host():
    """Each of 8 devices sends 3/4 of its half of the bytes, along one axis or shared by two sets of axes."""
    sent = 8 * N * 3 / 8 - 2 * LAYERS
    split = times(update(row()), MESH, [0] * 8, CHIP)
    assert (split.longest, split.sum) == (sent / 1e3, sent / 1e3)
    replicated = times(update(row(spec=P(None, None, None))), MESH, [0] * 8, CHIP)
    assert (replicated.longest, replicated.sum) == (sent / 2e3, sent / 1e3)


def test_times_across_hosts():
    """Two hosts along the rows: of 3/8 of the bytes that a device sends, 1/8 crosses."""
    sent, across = (8 * N * share / 8 - 2 * LAYERS for share in (3, 1))
    along_rows, along_model = [0] * 4 + [1] * 4, [0, 1] * 4
    found = times(update(row()), MESH, along_rows, CHIP)
    assert (found.longest, found.sum) == (across / 1e2, across / 1e2 + (sent - across) / 1e3)
    assert times(update(row()), MESH, along_model, CHIP).longest == sent / (1e3 + 1e2)
    unknown = dataclasses.replace(CHIP, network_bandwidth=None)
    assert times(update(row()), MESH, along_rows, unknown).sum == 0


class Stated(type(TASK)):
    """A task whose loss reads two of three weights, one of them without a gradient."""

    def weight_table(self):
        boxes = {name: Weight(jax.ShapeDtypeStruct((3,), jnp.float32), used=(3,), **OF) for name in NAMES}
        return WeightTable({"params": boxes}).mapped(self.optimizer.assign)

    def loss(self, variables, batch, state=None, rng=None, sequence_rng=None):
        params = variables["params"]
        objective = jnp.sum(params["used"] * jax.lax.stop_gradient(params["stopped"]))
        return objective, None


NAMES = ("used", "unread", "stopped")
OF: dict[str, Any] = {"key": "scale_m", "spec": P(None), "role": "scale", "init": "", "stddev": 1.0, "fan_in": 1}


def test_gradients_that_are_constant():
    task = Stated(**{field.name: getattr(TASK, field.name) for field in dataclasses.fields(TASK)})
    assert weights_with_gradient(task, 1, 2) == {"params/used"}


def ratios(folder, name, sets, chip):
    """Returns the bounds' shares of the longest exchange and of the sum of all in the compiled program's roofline."""
    experiment = resolve(name, sets, smoke=True)
    machine = Machine(chip=CHIPS[chip], virtual_devices=8)
    plans = Plans(experiment, machine, "train", machine.devices(experiment), Results(folder / "layouts.jsonl"))
    (longest, everything), (plan, _) = plans.exchanges(Case({}, {})), plans.complete(Case({}, {}))
    links = {key: value for key, value in plan["roofline"].items() if key.startswith(("links_", "network_"))}
    across = sum(value for key, value in links.items() if key.startswith("network_"))
    return longest / max(*links.values(), across), everything / sum(links.values())


def test_a_bound_is_close_to_the_compiled_program(tmp_path):
    longest, everything = ratios(tmp_path, "DenseLm8B2x2", ["ZERO_STAGE=1", "DEVICE_MESH_SHAPE=8,1"], "h100")
    assert 0.7 < longest <= 1
    assert 0.7 < everything <= 1


TENSOR = "LAYOUT=tensor_parallel"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["8,1", "2,4"])
@pytest.mark.parametrize("stage", ["none", "0", "1", "2", "3"])
def test_no_bound_of_a_stage_is_above_the_compiled_program(tmp_path, stage, mesh):
    sets = [f"ZERO_STAGE={stage}", f"DEVICE_MESH_SHAPE={mesh}", "GRADIENT_ACCUMULATION=2", "BATCH_SIZE=16", TENSOR]
    longest, everything = ratios(tmp_path, "gpt2.Gpt2Small", sets, "h100")
    assert (0.3 if mesh == "8,1" else 0) < longest <= 1
    assert 0 < everything <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sets", "chip"),
    [
        ("gpt2.Gpt2Small", [TENSOR, "ZERO_STAGE=none", "DEVICE_MESH_SHAPE=8,1", "NUM_LAYERS=1"], "h100"),
        ("gpt2.Gpt2Small", ["ZERO_STAGE=3", "DEVICE_MESH_SHAPE=8,1", "UNROLL=2", "REMAT=full"], "v4"),
        ("gpt2.Gpt2Small", ["ZERO_STAGE=3", "DEVICE_MESH_SHAPE=8,1", "GRADIENT_DTYPE=bfloat16"], "v4"),
        ("gpt2.Gpt2Small", [TENSOR, "ZERO_STAGE=1", "DEVICE_MESH_SHAPE=4,2", "DCN_MESH_SHAPE=2,1"], "h100"),
        ("gpt2.Gpt2Small", [TENSOR, "ZERO_STAGE=3", "DEVICE_MESH_SHAPE=4,2", "DCN_MESH_SHAPE=2,2"], "h100"),
        ("gpt2.Gpt2Small", [TENSOR, "ZERO_STAGE=1", "DEVICE_MESH_SHAPE=4,2", "DCN_MESH_SHAPE=2,1"], "v4"),
        ("gshard.MoeLm128x39B", ["ZERO_STAGE=3", "DEVICE_MESH_SHAPE=4,2"], "h100"),
        ("gshard.DenseLm8B2x2", ["ZERO_STAGE=none", "DEVICE_MESH_SHAPE=4,2"], "v3"),
        ("mistral.Mixtral8x7B", ["ZERO_STAGE=0", "DEVICE_MESH_SHAPE=8,1"], "h100"),
        ("mix.MuVqGShard", ["ZERO_STAGE=2", "DEVICE_MESH_SHAPE=4,2", "GRADIENT_ACCUMULATION=2"], "h100"),
        ("vq.VQLarge", ["ZERO_STAGE=3", "DEVICE_MESH_SHAPE=4,1,2"], "v4"),
        ("vq.VQLarge", ["ZERO_STAGE=none", "DEVICE_MESH_SHAPE=2,2,2"], "v4"),
        ("wiki_bert.MLPerfTrainBertDense2B", ["ZERO_STAGE=none", "DEVICE_MESH_SHAPE=8,1"], "v4"),
    ],
)
def test_no_bound_of_an_entry_is_above_the_compiled_program(tmp_path, name, sets, chip):
    longest, everything = ratios(tmp_path, name, sets, chip)
    assert 0 <= longest <= 1
    assert 0 <= everything <= 1
