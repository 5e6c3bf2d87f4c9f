"""Machines that are not attached: names, the GPU's description, its capacity, and plans by the GPU compiler."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta

from layers.attention.softmax import Attention
from layers.errors import UsageError
from layers.specs import Specs
from layers.weights.initializers import FanIn
from registry.templates.decoder import DecoderLm
from runners.machine.chips import CHIPS
from runners.planner.machine import Machine
from runners.planner.programs.hlo import collectives
from runners.planner.summary import fit_message
from runners.planner.topologies import parse_topology, planned_cudnn, target_config, topology_devices
from tests.support.compilers import needs_gpu_compiler

GIB = 2**30
DENSE = ("ATTENTION_IMPLEMENTATION=dense",)


@pytest.mark.parametrize(
    ("name", "chip", "grid", "slices"),
    [
        ("h100:8x8", "h100", (8, 8), 1),
        ("a100-40:1x16", "a100-40", (1, 16), 1),
        ("v4:4x4x4", "v4", (4, 4, 4), 1),
        ("2*v5e:16x16", "v5e", (16, 16), 2),
    ],
)
def test_names(name, chip, grid, slices):
    assert parse_topology(name) == (CHIPS[chip], grid, slices)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", r"must be a TPU and its grid of chips, .* \(got h100\)"),
        ("v3:8", r"must be a TPU"),
        ("v9:2x2", r"Unknown chip 'v9' in --topology=v9:2x2\. Did you mean 'v\d\w?'"),
        ("h100:2x2x2", r"must be hosts x GPUs of a host\. Write for example h100:8x8"),
        ("h100:0x8", r"must be hosts x GPUs of a host"),
        ("2*h100:8x8", r"--topology=2\*h100:8x8 has slices, which only TPUs have\. Write hosts x GPUs: h100:16x8"),
        ("0*v5e:2x2", r"--topology=0\*v5e:2x2 has no device"),
        ("x*v5e:2x2", r"must be a TPU and its grid of chips"),
        ("h10:8x8", r"Unknown chip 'h10' in --topology=h10:8x8\. Did you mean 'h100'"),
    ],
)
def test_bad_names_are_refused(name, message):
    with pytest.raises(UsageError, match=message):
        parse_topology(name)


def test_the_description_of_a_gpu_states_what_changes_the_program():
    chip = CHIPS["h100"]
    assert chip.gpu is not None
    config = target_config(chip, chip.gpu)
    fields = dict(re.findall(r"(\w+): (\"[^\"]*\"|[\d.]+)", config))
    for name, value in {
        "core_count": "132",
        "fpus_per_core": "128",
        "clock_rate_ghz": "1.98",
        "l2_cache_size": str(50 * 2**20),
        "device_memory_size": "84942979072",
        "memory_bandwidth": "3350000000000",
        "shared_memory_per_core": str(228 * 2**10),
        "shared_memory_per_block_optin": str(227 * 2**10),
        "threads_per_warp": "32",
        "block_dim_limit_x": str(2**31 - 1),
        "device_description_str": '"NVIDIA H100"',
    }.items():
        assert fields[name] == value, name
    assert "cuda_compute_capability { major: 9 }" in config


def test_a_process_gets_three_quarters_of_a_gpu():
    h100, v4 = CHIPS["h100"], CHIPS["v4"]
    assert h100.capacity() == int(0.75 * 84_942_979_072)
    assert h100.capacity(0.9) == int(0.9 * 84_942_979_072)
    assert v4.capacity() == v4.hbm_bytes == 32 * GIB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_fraction": 0.9}, "needs a GPU"),
        ({"memory_fraction": 0.9, "chip": "v4"}, "needs a GPU"),
        ({"memory_fraction": 1.5, "chip": "h100"}, r"must be above 0 and at most 1 \(got 1.5\)"),
        ({"memory_fraction": 0.0, "topology": "h100:1x8"}, r"must be above 0 and at most 1 \(got 0.0\)"),
        ({"chip": "v4", "topology": "h100:1x8"}, "implies its own chip"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Machine.named(**options)


@pytest.mark.parametrize(
    ("peak", "fits", "message"),
    [
        (50, True, "Fits: 50 GiB of 60 GiB, 10 GiB free. JAX preallocates 75.0% of the card's 80 GiB."),
        (70, False, "10 GiB too much. JAX preallocates 75.0% of the card's 80 GiB. The peak is 87.5% of it: set XLA_"),
        (90, False, "Does not fit: 90 GiB of 60 GiB, 30 GiB too much. JAX preallocates 75.0% of the card's 80 GiB."),
    ],
)
def test_the_share_of_the_card_is_printed(peak, fits, message):
    content = {
        **{"topology": "h100:1x8", "fits": fits, "memory_bytes_per_device": {"peak": peak * GIB}},
        **{"hbm_bytes_per_device": 80 * GIB, "capacity_bytes_per_device": 60 * GIB},
    }
    assert message in fit_message(content)
    assert ("MEM_FRACTION=0.88 or more" in fit_message(content)) is (peak == 70)


@pytest.mark.parametrize(("platform", "is_fused"), [("cpu", False), ("tpu", False), ("gpu", True)])
def test_attention_asks_for_the_platform_that_is_compiled_for(platform, is_fused):
    init = {"initializer": FanIn(), "out_initializer": FanIn(), "specs": DecoderLm().specs.of(Attention)}
    sizes = {"model_dim": 16, "num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "dtype": "bfloat16"}
    layer = Attention(**init, **sizes, activations=Specs(), window=5)
    x = jnp.zeros((1, 8, 16), jnp.bfloat16)
    variables = meta.unbox(jax.eval_shape(layer.init, jax.random.key(0), x))
    device = jax.sharding.AbstractDevice(device_kind=platform, num_cores=1, platform=platform)
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), planned_cudnn(CHIPS["h100"]):
        program = jax.make_jaxpr(lambda v: layer.apply(v, x)[0])(variables)
    assert ("dot_product_attention_fwd" in str(program)) is is_fused
    assert ("sliding_window_length=5" in str(program)) is is_fused


def planned(command, tmp_path, name, topology, *sets):
    """The plan of a full-size experiment, made by the runner with the compilers' own settings."""
    flags = [f"--exp={name}", "--mode=plan", f"--topology={topology}", f"--workdir={tmp_path / 'p'}"]
    command("runners.main", *flags, *(f"--set={one}" for one in sets), XLA_FLAGS="")
    return json.loads((tmp_path / "p" / "plan.json").read_text())


@pytest.mark.slow
@pytest.mark.gpu_plan
@needs_gpu_compiler
@pytest.mark.parametrize(
    ("name", "topology", "sets", "peak", "sent", "fits"),
    [
        ("gshard.DenseLm8B2x2", "h100:1x8", DENSE, 13.1, 13.6, True),
        ("gpt2.Gpt2XL", "h100:8x8", DENSE, 89.1, 8.8, False),
        ("vq.VQLarge", "h100:8x8", (), 2.5, 29.7, True),
        ("gshard.DenseLm128B8x8", "h100:16x8", DENSE, 10.1, 77.7, True),
    ],
)
def test_peaks_and_exchanges_by_the_gpu_compiler(name, topology, sets, peak, sent, fits, command, tmp_path):
    """Figures seen with another program around the same compiler, in GiB; its attention was dense."""
    plan = planned(command, tmp_path, name, topology, *sets)
    assert plan["memory_bytes_per_device"]["peak"] / GIB == pytest.approx(peak, rel=0.02)
    assert round(sum(total["bytes"] for total in plan["collectives"]) / GIB, 1) == sent
    assert plan["fits"] is fits
    assert sum(one["bytes"] for one in plan["peak_buffers"]) == plan["memory_bytes_per_device"]["peak"]
    if name == "gpt2.Gpt2XL":
        findings = {one["kind"]: one for one in plan["findings"]}
        kernel = "cuDNN attention" if fits else "products and a Triton softmax"
        assert plan["kernels"]["attention"] == {"stack/block/mixer": kernel}
        assert ("scores" in findings) is ("kernel" in findings) is (not fits)
        assert "hosts" in findings
        if not fits:
            assert findings["scores"]["knob"] == "ATTENTION_IMPLEMENTATION=blockwise"
            assert findings["kernel"]["knob"] == "ATTENTION_DROPOUT=0"


@pytest.mark.slow
@pytest.mark.gpu_plan
@needs_gpu_compiler
def test_attention_with_dropout_is_blockwise_on_a_gpu(command, tmp_path):
    plan = planned(command, tmp_path, "gpt2.Gpt2XL", "h100:8x8")
    assert plan["memory_bytes_per_device"]["peak"] < 30 * GIB
    assert plan["fits"]
    assert plan["kernels"]["attention"] == {"stack/block/mixer": "blockwise products"}
    text = "Attention is blockwise in stack/block/mixer, not cuDNN's kernel, because of dropout on attention."
    assert any(one["text"].startswith(text) for one in plan["findings"])
    assert "scores" not in {one["kind"] for one in plan["findings"]}


@pytest.mark.slow
@pytest.mark.gpu_plan
@needs_gpu_compiler
def test_offloaded_activations_take_the_time_of_their_bytes(command, tmp_path):
    sets = ("BATCH_SIZE=16", "GRADIENT_ACCUMULATION=2", "REMAT=offload")
    plan = planned(command, tmp_path, "pythia.Pythia14M", "h100:1x1", *sets)
    layers, rows, length, width = 6, 16, 2048, 512
    assert plan["host_transfers"] == dict.fromkeys(("to", "from"), layers * rows * length * width * 2)
    assert plan["roofline"]["host_seconds"] == 2 * plan["host_transfers"]["to"] / 64e9
    assert plan["roofline_step_seconds"] == plan["roofline"]["host_seconds"]


@pytest.mark.slow
@pytest.mark.gpu_plan
@needs_gpu_compiler
@pytest.mark.parametrize("chip", [name for name, chip in CHIPS.items() if chip.gpu])
def test_every_gpu_has_a_compiler(chip):
    devices = topology_devices(f"{chip}:2x4")
    assert [device.process_index for device in devices] == [0] * 4 + [1] * 4
    mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 4), ("data", "model"))
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P("data", "model")))
    compiled: Any = jax.jit(lambda x, y: jnp.exp(x @ y).sum()).lower(x, x).compile()
    assert compiled.memory_analysis().peak_memory_in_bytes > 2 * 256 * 256 * 2 / 8
    assert {"all-gather", "all-reduce"} <= {one.kind for one in collectives(compiled.as_text(), dict(mesh.shape))}
