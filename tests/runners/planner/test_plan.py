"""The planner against what can be measured: live arrays, closed forms, and the TPU compiler where it is installed."""

import json

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from registry.index import entries
from registry.resolve import resolve
from runners.flops import matmul_flops
from runners.machine.chips import CHIPS, chip_of
from runners.planner.cost import cost
from runners.planner.machine import Machine
from runners.planner.page import write
from runners.planner.plan import plan
from runners.planner.programs.compilation import out_of_memory
from runners.planner.summary import fit_message, numbers, parts, show
from runners.session import Session
from tests.support.compilers import needs_tpu_compiler

GIB = 2**30
SCRIPT = "<script>alert(1)</script>"
PLANNED = ["gshard.DenseLm8B2x2", "gshard.DenseLm175B32x32", "gshard.MoeLm8x2B", "wiki_bert.MLPerfTrainBertDense2B"]


def session_of(name, *sets):
    return Session(resolve(name, ["DEVICE_MESH_SHAPE=2,4", *sets], smoke=True), jax.devices()[:8])


@pytest.mark.parametrize("name", [*PLANNED, "tiny.StdlibTiny"])
def test_predicted_arguments_are_the_live_arrays(name):
    session = session_of(name)
    found = cost(session, Machine(chip=CHIPS["v3"]))
    with session.placed():
        batch, _ = next(session.host_batches.iterate(session.train.input))
        state = session.functions.init()
    device = jax.devices()[5]

    def held(tree):
        shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
        return sum(shard.data.nbytes for shard in shards if shard.device == device)

    seed = 8  # two words of key data
    memory = found["memory_bytes_per_device"]
    assert memory["arguments"] == held((state, batch)) + seed
    weights, slots = (
        held([leaf for leaf in jax.tree.leaves(t) if leaf.ndim]) for t in (state.variables, state.optimizer)
    )
    assert (memory["weights"], memory["optimizer"]) == (weights, slots)
    most = memory["arguments"] + memory["outputs"] - memory["aliased"] + memory["temporaries"]
    assert memory["peak"] == most
    assert memory["aliased"] > 0.9 * memory["weights"]  # the old state's memory is used again
    assert found["collectives"]
    assert found["fits"] is True


def closed_form(experiment) -> int:
    """Multiply-adds of matrix products in a forward pass per token, times two."""
    e = experiment
    kv = e.NUM_HEADS if e.NUM_KV_HEADS is None else e.NUM_KV_HEADS
    slots = e.PADDED_HEADS or e.NUM_HEADS
    matrices = (
        e.MODEL_DIM * e.HEAD_DIM * (2 * e.NUM_HEADS + 2 * kv) + (3 if e.FFN == "gated" else 2) * e.MODEL_DIM * e.FFN_DIM
    )
    scores = 2 * slots * e.HEAD_DIM * e.SEQ_LEN
    logits = e.MODEL_DIM * -(-e.VOCAB_SIZE // e.PAD_VOCAB_TO) * e.PAD_VOCAB_TO
    return 2 * (e.NUM_LAYERS * (matrices + scores) + logits)


@pytest.mark.parametrize("name", [n for n in entries() if n.startswith(("gshard.Dense", "wiki_bert."))])
def test_flops_equal_the_closed_form(name):
    session = session_of(name)
    assert session.throughput.flops_per_token == 3 * closed_form(session.experiment)


@pytest.mark.parametrize("name", ["DenseLm128B8x8", "DenseLm175B32x32"])
def test_flops_of_a_complete_step(name):
    plain, again = (_flops_per_token(session_of(name, f"REMAT={remat}")) for remat in ("none", "full"))
    e = session_of(name).experiment
    assert plain == 3 * closed_form(e)
    # The layers' forward pass again, but for each layer's last product, which no gradient needs.
    last = 2 * e.NUM_LAYERS * e.FFN_DIM * e.MODEL_DIM
    assert again - plain == closed_form(e) - 2 * e.MODEL_DIM * e.VOCAB_SIZE - last


def _flops_per_token(session):
    flops = matmul_flops(session.functions.step, session.abstract.state, session.abstract.batch, session.abstract.seed)
    return flops / session.abstract.sample_batch.inputs.size


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DenseLm128B8x8", 8.3909e11),
        ("DenseLm175B32x32", 1.0750e12),
        ("DenseLm1T16x16", 6.6260e12),
        ("DenseLm12kWide41BAdam8x8", 2.7053e11),
    ],
)
def test_flops_per_token_at_full_size(name, expected):
    """Work per token that was derived for the reference."""
    assert 3 * closed_form(resolve(name)) == pytest.approx(expected, rel=1e-4)


def test_a_decoding_step_reads_a_full_context():
    session = session_of("DenseLm8B2x2")
    found = cost(session, Machine(chip=CHIPS["v4"]), step="decode")
    memory, e = found["memory_bytes_per_device"], session.experiment
    cache = 2 * e.NUM_LAYERS * e.BATCH_SIZE * e.SEQ_LEN * e.NUM_HEADS * e.HEAD_DIM * 4
    held = memory["arguments"] - memory["weights"]
    assert cache // 8 <= held < cache // 8 + e.NUM_LAYERS * (e.BATCH_SIZE * e.SEQ_LEN + 1) * 4 + 200
    assert memory["optimizer"] == memory["gradients"] == 0
    assert found["tokens_per_step"] == e.BATCH_SIZE


def test_a_small_chip_is_too_small():
    import dataclasses

    tiny = dataclasses.replace(CHIPS["v3"], hbm_bytes=2**16)
    found = cost(session_of("DenseLm8B2x2"), Machine(chip=tiny))
    assert found["fits"] is False
    assert fit_message(found).startswith("Does not fit: ")
    assert "too much" in fit_message(found)


def test_the_compiler_s_own_refusal_is_a_result():
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (16.50G) exceeds "
        "available HBM (15.48G).\nmore"
    )
    found = out_of_memory(message)
    assert found is not None
    assert (found["needed_bytes"], found["available_bytes"]) == (int(16.5 * GIB), int(15.48 * GIB))
    assert out_of_memory("INTERNAL: something else") is None
    content = {"compiler": found}
    assert "1.02 GiB too much" in fit_message(content)


def test_parts_add_up_to_the_peak():
    found = cost(session_of("DenseLm8B2x2"), Machine())
    assert sum(parts(found).values()) == found["memory_bytes_per_device"]["peak"]
    assert found["fits"] is None
    assert "roofline" not in found


def test_files(tmp_path, capsys):
    experiment = resolve("DenseLm8B2x2", smoke=True)
    assert plan(experiment, tmp_path / "p", Machine(chip=CHIPS["v3"], virtual_devices=8)) == 0
    written = json.loads((tmp_path / "p" / "plan.json").read_text())
    for key in ("experiment", "topology", "devices", "mesh", "fits", "hbm_bytes_per_device", "memory_bytes_per_device"):
        assert key in written
    assert (written["smoke"], written["overrides"]) == (True, [])
    for key in ("weights", "optimizer", "arguments", "outputs", "aliased", "temporaries", "peak"):
        assert key in written["memory_bytes_per_device"]
    for key in ("flops_per_step", "flops_per_token", "collectives", "roofline_step_seconds", "roofline_mfu"):
        assert key in written
    assert written["compile_seconds"] > 0
    page = (tmp_path / "p" / "plan.html").read_text()
    (tmp_path / "q").mkdir()
    write({**written, "experiment": SCRIPT, "topology": SCRIPT, "overrides": [SCRIPT]}, experiment, tmp_path / "q")
    attacked = (tmp_path / "q" / "plan.html").read_text()
    assert SCRIPT not in attacked
    assert attacked.count("alert(1)") >= 3, "each is shown as text"
    assert '"name":"weights","x":[' in page
    assert (tmp_path / "p" / "assets" / "figures.js").exists()
    assert "stack/block/ffn/ffn_in_mf" in page
    shown = capsys.readouterr().out
    assert "Fits: " in shown
    assert "gshard.DenseLm8B2x2 --smoke, one train step" in shown
    assert "all-gather" in shown


def test_chips():
    class Device:
        def __init__(self, kind):
            self.device_kind = kind

    found = {kind: chip_of(Device(kind)) for kind in ("TPU v5 lite", "TPU v5", "TPU v5p", "NVIDIA H200 NVL", "cpu")}
    assert [chip and chip.name for chip in found.values()] == ["v5e", "v5p", "v5p", "h200", None]


@needs_tpu_compiler
@pytest.mark.parametrize("name", ["DenseLm128B8x8", "DenseLm1T16x16"])
def test_it_fits_by_the_tpu_compiler(name, command, tmp_path):
    grid = "8x8" if name.endswith("8x8") else "16x16"
    flags = [f"--exp={name}", "--mode=plan", "--workdir=p"]
    ended = command("runners.main", *flags, f"--topology=v3:{grid}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tpu = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert tpu["fits"] is True
    peak = tpu["memory_bytes_per_device"]["peak"]
    assert peak < 16 * GIB
    assert sum(one["bytes"] for one in tpu["peak_buffers"]) == pytest.approx(peak, rel=0.05)
    kinds = {(c["kind"], c["axis"]) for c in tpu["collectives"]}
    assert {("all-gather", "data"), ("reduce-scatter", "data"), ("reduce-scatter", "model")} <= kinds
    ended = command("runners.main", *flags, "--chip=v3")
    assert ended.returncode in (0, 1), ended.stderr
    cpu = json.loads((tmp_path / "p" / "plan.json").read_text())
    arguments = [found["memory_bytes_per_device"]["arguments"] for found in (tpu, cpu)]
    np.testing.assert_allclose(*arguments, rtol=0.15)
    assert cpu["flops_per_step"] == tpu["flops_per_step"]


@needs_tpu_compiler
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_tpus_have_splash_attention(chip, command, tmp_path):
    flags = ["--exp=llama.Llama3_2_1B", "--smoke", "--set=SEQ_LEN=256", "--set=DEVICE_MESH_SHAPE=8,1"]
    ended = command("runners.main", *flags, "--mode=plan", f"--topology={chip}:2x4", "--workdir=p")
    assert "Attention: Splash attention in stack/block/mixer." in ended.stdout, ended.stdout + ended.stderr
    content = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert content["kernels"] == {"attention": {"stack/block/mixer": "Splash attention"}}


@needs_tpu_compiler
def test_an_unknown_slice_is_a_sentence(command):
    ended = command("runners.main", "--exp=DenseLm8B2x2", "--mode=plan", "--topology=v3:3x5")
    assert ended.returncode == 2
    assert "does not support a v3 slice of 3x5 chips" in ended.stderr


def test_a_mixture_s_registered_step_has_its_all_to_all():
    found = cost(session_of("MoeLm8x2B", "DEVICE_MESH_SHAPE=8,1"), Machine())
    exchanges = {(c["kind"], c["axis"]): c["count"] for c in found["collectives"]}
    # Two layers with experts: to them and back, forward, again in the backward pass, and for the gradient.
    assert exchanges["all-to-all", "data"] >= 2 * 4
    assert found["loops_counted_once"] == 0


def test_products_that_carry_tokens_are_not_work_of_the_model():
    session = session_of("MoeLm8x2B")
    e, batch = session.experiment, session.abstract.sample_batch
    heads = e.NUM_HEADS * e.HEAD_DIM
    attention = e.NUM_LAYERS * (4 * e.MODEL_DIM * heads + 2 * heads * e.SEQ_LEN)
    dense = e.NUM_LAYERS // 2 * 2 * e.MODEL_DIM * e.FFN_DIM
    slots = e.NUM_EXPERTS * e.NUM_GROUPS * 8  # 32 tokens a group, factor 2, 8 experts
    experts = 2 * slots * e.MODEL_DIM * e.EXPERT_DIM / batch.inputs.size + e.MODEL_DIM * e.NUM_EXPERTS
    whole = attention + dense + e.NUM_LAYERS // 2 * experts + e.MODEL_DIM * e.VOCAB_SIZE
    assert session.throughput.flops_per_token == 3 * 2 * whole


def test_where_the_plan_goes_is_looked_at_first(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="for results cannot be created"):
        plan(resolve("DenseLm8B2x2", smoke=True), tmp_path / "file", Machine(virtual_devices=8))
    assert (tmp_path / "file").read_text() == "mine"


def test_on_the_cpu_links_bound_an_estimate():
    found = cost(session_of("DenseLm8B2x2"), Machine(chip=CHIPS["v3"]))
    roofline, step = found["roofline"], found["roofline_step_seconds"]
    (links,) = [name for name in roofline if name == "links_model_seconds"]
    sent = sum(c["bytes"] for c in found["collectives"] if c["axis"] == "model")
    assert roofline[links] == sent / CHIPS["v3"].link_bandwidth
    assert step == max(roofline.values()) == roofline[links]
    assert found["roofline_tokens_per_second"] == found["tokens_per_step"] / step
    assert found["roofline_is_estimate"] is True
    figures = dict(numbers(found))
    assert figures["estimated step time"].startswith(f"about {step:.3g} s (compute ")
    assert not any("at least" in value or "not counted" in name for name, value in figures.items())


def test_without_a_chip_the_plan_names_the_flags():
    found = cost(session_of("DenseLm8B2x2"), Machine())
    assert "--chip=v3 or --topology=v3:8x8" in fit_message(found)
    assert "estimate of the step time" in fit_message(found)


@pytest.mark.parametrize("width", [80, 120])
def test_a_plan_fits_its_width(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    axes = [f"links_{axis}_seconds" for axis in ("data", "sequence", "model", "data+sequence+model")]
    found = {
        **{"experiment": "gshard.DenseLm12kWide162BAdamBS25616x16", "smoke": False, "overrides": ["X=[red]", "Y=2"]},
        **{"step": "train", "topology": None, "chip": "v3", "devices": 512, "mesh": {"data": 16, "model": 32}},
        **{
            "fits": True,
            "hbm_bytes_per_device": 2**34,
            "capacity_bytes_per_device": 2**34,
            "flops_per_step": 10**18,
            "flops_per_token": 10**9,
        },
        **{"tokens_per_step": 2**20, "compile_seconds": 1.0, "loops_counted_once": 0},
        "memory_bytes_per_device": {"weights": 2**30, "optimizer": 2**30, "gradients": 2**30, "peak": 2**34 - 1},
        "collectives": [
            {
                **{"kind": "collective-permute", "axis": "data+sequence+model", "dtype": "bf16"},
                **{"count": 10**6, "bytes": 2**40 + i},
            }
            for i in range(10)
        ],
        "roofline_step_seconds": 9.0,
        "roofline_tokens_per_second": 1e6 / 9,
        "roofline_mfu": 0.5 / 9,
        **{"roofline": dict.fromkeys(("compute_seconds", "memory_seconds", *axes), 1.25e-4)},
        "roofline_is_estimate": True,
    }
    show(found)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    text = " ".join(out.split())
    for whole in (found["experiment"], "--set=X=[red]", "data+sequence+model", "collective-permute", "links sequence"):
        assert whole in text
    assert "17,179,869,183 B of 17,179,869,184 B" in text, "16 GiB of 16 GiB would be false"
    assert "The 2 smaller collectives are in plan.json" in text
