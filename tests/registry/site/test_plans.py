"""Plans of --mode=plan as rows of an experiment's page."""

import json

import pytest

from layers.errors import UsageError
from registry.site.plans import plan_row, read_plans

GIB = 2**30
PLAN = {
    "experiment": "tiny.StdlibTiny",
    "smoke": True,
    "overrides": ["NUM_LAYERS=2"],
    "step": "train",
    "topology": "v3:8x8",
    "chip": "v3",
    "devices": 128,
    "mesh": {"data": 64, "model": 2},
    "fits": True,
    "hbm_bytes_per_device": 16 * GIB,
    "memory_bytes_per_device": {"weights": GIB, "optimizer": 2 * GIB, "gradients": GIB, "peak": 8 * GIB},
    "flops_per_step": 2 * 10**15,
    "flops_per_token": 3 * 10**9,
    "tokens_per_step": 2**20,
    "collectives": [{"kind": "all-reduce", "axis": "data", "dtype": "f32", "count": 3, "bytes": GIB}] * 2,
    "roofline": {"compute_seconds": 0.5},
    "roofline_is_estimate": False,
    "roofline_step_seconds": 0.5,
    "roofline_tokens_per_second": 2097152.0,
    "roofline_mfu": 0.345,
}


def test_a_plan_that_fits():
    row = plan_row(PLAN)
    assert row["title"] == "Train step on 128 devices (v3:8x8), data=64 model=2 --smoke --set=NUM_LAYERS=2"
    assert (row["fit"], row["verdict"]) == ("Fits: 8 GiB of 16 GiB.", "yes")
    assert [(part["kind"], part["size"], part["share"]) for part in row["memory"]] == [
        ("weights", "1 GiB", 6.25),
        ("gradients", "1 GiB", 6.25),
        ("optimizer", "2 GiB", 12.5),
        ("activations and other", "4 GiB", 25.0),
    ]
    assert dict(row["figures"]) == {
        "tokens per step": "1,048,576",
        "FLOPs per step": "2e+15",
        "FLOPs per token": "3e+09",
        "step time": "at least 0.5 s",
        "tokens per second": "at most 2,097,152",
        "MFU": "at most 34.5%",
        "sent per device and step": "2 GiB",
    }


def test_the_largest_buffers_and_the_findings():
    buffers = [
        {"bytes": GIB, "what": "mu", "layer": "stack", "source": "", "row": "params/stack/w"},
        {"bytes": 3, "what": "f32[3]", "layer": "stack", "source": "layers/norm.py:3", "row": ""},
    ]
    row = plan_row({**PLAN, "peak_buffers": buffers, "findings": [{"text": "Scores are written."}]})
    assert row["buffers"] == [("mu", "1 GiB", "params/stack/w"), ("f32[3]", "3 B", "stack")]
    assert row["findings"] == ["Scores are written."]
    assert plan_row(PLAN)["buffers"] == plan_row(PLAN)["findings"] == [], "plans of earlier versions have none"


def test_a_plan_that_the_compiler_refused_and_one_without_a_chip():
    held = {"weights": GIB, "optimizer": 2 * GIB, "gradients": GIB}
    refused = {**PLAN, "fits": False, "memory_bytes_per_device": held, "collectives": []}
    assert plan_row(refused)["fit"] == "Does not fit."
    unknown = {**PLAN, "topology": None, "chip": None, "fits": None, "hbm_bytes_per_device": None}
    row = plan_row(unknown)
    assert (row["fit"], row["verdict"]) == ("Needs 8 GiB per device.", "unknown")
    assert "(virtual CPU devices)" in row["title"]
    assert sum(part["share"] for part in row["memory"]) == 100


def test_files_and_folders_of_plans(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text(json.dumps({**PLAN, "step": "train" if name == "a" else "decode"}))
    (tmp_path / "empty").mkdir()
    found = read_plans([f"{tmp_path}/*", f"{tmp_path}/a/plan.json"])
    assert [row["title"].partition(" ")[0] for row in found["tiny.StdlibTiny"]] == ["Train", "Decode", "Train"]
    for content in ("{", "[]", "{}"):
        (tmp_path / "b" / "plan.json").write_text(content)
        with pytest.raises(UsageError, match=r"plan\.json' cannot be read as a plan: .*\. Remove it from --plans\."):
            read_plans([f"{tmp_path}/*"])


@pytest.mark.parametrize(
    "changes", [{"experiment": 5}, {"mesh": 1}, {"devices": "8"}, {"collectives": [1]}, {"fits": 2}]
)
def test_values_of_other_types(tmp_path, changes):
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, **changes}))
    with pytest.raises(UsageError, match=r"plan\.json' cannot be read as a plan: .*\. Remove it from --plans\."):
        read_plans([str(tmp_path)])
