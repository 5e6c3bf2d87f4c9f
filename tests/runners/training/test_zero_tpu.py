"""What the TPU compiler makes of ZeRO's exchanges."""

import json
from collections import Counter

import pytest

from tests.support.compilers import needs_tpu_compiler

pytestmark = needs_tpu_compiler
WEIGHTS = 4 * (4096 * 1024 + 3 * (12 * 1024**2 + 2 * 1024) + 1024)  # bytes
SIZES = ["NUM_LAYERS=3", "MODEL_DIM=1024", "NUM_HEADS=8", "VOCAB_SIZE=4096", "SEQ_LEN=128", "DATA=synthetic"]


def sent(command, folder, stage, topology, microbatches):
    """Times and bytes that each of 8 devices sends, by kind, and the peak of its memory."""
    knobs = [*SIZES, "DEVICE_MESH_SHAPE=8,1", f"BATCH_SIZE={8 * microbatches}", f"GRADIENT_ACCUMULATION={microbatches}"]
    flags = [f"--set={knob}" for knob in (*knobs, f"ZERO_STAGE={stage}")]
    where = [f"--topology={topology}", f"--workdir=plan-{stage}-{topology[:2]}"]
    done = command("runners.main", "--exp=zero.Zero417MStage1", "--mode=plan", *where, *flags, JAX_PLATFORMS="")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((folder / where[1].removeprefix("--workdir=") / "plan.json").read_text())
    amounts: Counter[str] = Counter()
    for one in found["collectives"]:
        amounts[one["kind"]] += one["bytes"]
    return amounts, found["memory_bytes_per_device"]


@pytest.mark.parametrize("topology", ["v3:2x2", "v5e:2x4"])
def test_exchanges_by_the_tpu_compiler(topology, command, tmp_path):
    """It may turn a reduce-scatter into an all-reduce and a slice, which sends twice as much; times are kept."""
    ring = WEIGHTS * 7 // 8
    pieces = 4
    first, memory = sent(command, tmp_path, 1, topology, pieces)
    gradients = first.get("reduce-scatter", 0) + first["all-reduce"] / 2
    assert gradients == pytest.approx(ring, rel=0.01), "once per update"
    assert first["all-gather"] == pytest.approx(ring, rel=0.01)
    third, less = sent(command, tmp_path, 3, topology, pieces)
    gradients = third.get("reduce-scatter", 0) + third["all-reduce"] / 2
    assert gradients == pytest.approx(pieces * ring, rel=0.1), "once per micro-batch, but for the embedding"
    # Forth and back in bfloat16; the embedding once. The compiler saves a few.
    table = 4 * 4096 * 1024 * 7 // 8
    assert third["all-gather"] == pytest.approx(pieces * (ring - table) + table, rel=0.25)
    if topology == "v5e:2x4":
        assert first["reduce-scatter"] > 0.5 * ring
    assert memory["arguments"] - less["arguments"] == pytest.approx(WEIGHTS * 7 / 8, rel=0.02)
    assert less["peak"] < memory["peak"]
