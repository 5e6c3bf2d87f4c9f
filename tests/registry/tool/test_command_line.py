import json
import subprocess
import sys

import pytest

from registry.tool import verbs
from tests.conftest import ROOT
from tests.support.registry_commands import data, registry


def test_list_imports_no_jax():
    code = "import sys; from registry.tool.command_line import main; main(['list']); print('jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"
    assert "tiny.StdlibTiny" in out


def test_list(capsys):
    _, rows = data(capsys, "list")
    tiny = next(row for row in rows if row["name"] == "tiny.StdlibTiny")
    assert set(tiny) == {"name", "base", "doc", "mesh", "meshes", "parameters", "bytes", "devices"}
    assert (tiny["base"], tiny["mesh"], tiny["devices"]) == ("DecoderLm", [-1, 1], 1)
    assert tiny["bytes"] == 4 * tiny["parameters"]
    giant = next(row for row in rows if row["name"] == "gshard.DenseLm1T16x16")
    assert (giant["devices"], giant["parameters"] > 1e12) == (512, True)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("tiny.*Small", ["tiny.StdlibSmall"]),
        ("*.Stdlib*y", ["tiny.StdlibTiny"]),
        ("GptQ?", ["gpt.GptQA"]),  # the class name alone
        ("gpt.gptxx[l]", ["gpt.GptXXL"]),
        ("wide41b", ["gshard.DenseLm12kWide41BAdam16x16", "gshard.DenseLm12kWide41BAdam8x8"]),  # a part of the name
    ],
)
def test_list_of_a_pattern(capsys, pattern, names):
    assert [row["name"] for row in data(capsys, "list", pattern)[1]] == names


def test_a_pattern_matches_from_the_beginning_of_a_name(capsys):
    families = {row["name"].partition(".")[0] for row in data(capsys, "list", "gpt.*")[1]}
    assert families == {"gpt"}, "and not little_gpt"


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("params>5e6 and params<12e6", ["gpt.GptQA", "gpt.GptTest", "tiny.StdlibSmall"]),
        ("params>1e12", ["gpt2.Gpt1T", "gshard.DenseLm1T16x16"]),
        ("params>7e6 and params<12e6 and devices<=1", ["tiny.StdlibSmall"]),
        ("gradient_bytes_per_device<20000 and devices==32", ["zero.ZeroTestStage2", "zero.ZeroTestStage3"]),
        ("not params>5e6 and bytes<1", []),
    ],
)
def test_list_where(capsys, monkeypatch, condition, names):
    monkeypatch.setattr(verbs, "_weights_of", None)  # what is cached is not computed
    code, rows = data(capsys, "list", "--where", condition)
    assert [row["name"] for row in rows] == names
    assert code == (0 if names else 1)


def test_a_condition_that_nothing_meets_is_a_sentence_and_exit_code_1(capsys):
    assert registry(capsys, "list", "--where", "params<1") == (
        1,
        "No experiment meets the condition of --where.\n",
        "",
    )


def test_list_with_overrides_shows_the_changed_figures(capsys):
    (plain,), (wide,), (small,) = (
        data(capsys, "list", "tiny.StdlibTin[y]", *more)[1]
        for more in ([], ["--set=MODEL_DIM=256", "--set=DEVICE_MESH_SHAPE=2x4"], ["--smoke", "--where", "params>0"])
    )
    assert wide["parameters"] > plain["parameters"] > small["parameters"]
    assert (wide["mesh"], wide["devices"]) == ([2, 4], 8)
    assert data(capsys, "list", "tiny.StdlibTin[y]")[1] == [plain], "and nothing of it is kept"


def test_weights(capsys):
    _, table = data(capsys, "weights", "tiny.StdlibTiny", "--set=DEVICE_MESH_SHAPE=2,4")
    assert table["experiment"] == "tiny.StdlibTiny"
    assert table["mesh"] == {"data": 2, "model": 4}
    row = next(row for row in table["weights"] if row["path"].endswith("ffn_in_mf"))
    assert row["shape"] == [4, 128, 512]
    assert row["bytes"] == 4 * 128 * 512 * 4 == 8 * row["bytes_per_device"]
    assert {"path", "shape", "dtype", "spec", "role", "decay", "bytes", "bytes_per_device"} <= set(row)
    totals = table["totals"]
    assert totals["parameters"] == sum(r["bytes"] for r in table["weights"]) // 4
    # Two moments per weight, and two counters of four bytes (Adam's and the schedule's).
    assert totals["optimizer_bytes_per_device"] == 2 * totals["bytes_per_device"]


def test_diff_of_two_names(capsys):
    code, difference = data(capsys, "diff", "tiny.StdlibTiny", "tiny.StdlibSmall")
    assert code == 1
    layers = next(row for row in difference["knobs"] if row["knob"] == "NUM_LAYERS")
    assert (layers["a"], layers["b"], layers["owner_b"]) == (4, 6, "tiny.StdlibSmall")
    assert (layers["text_a"], layers["text_b"]) == ("4", "6")
    assert {row["path"] for row in difference["config"]} >= {"task.model.stack.num_layers", "train.num_steps"}
    assert difference["totals"]["parameters"]["b"] > difference["totals"]["parameters"]["a"]


def test_diff_with_overrides_and_of_equals(capsys):
    code, difference = data(capsys, "diff", "StdlibTiny", "--set=task.z_loss=1e-4")
    assert code == 1
    assert difference["config"] == [{"path": "task.z_loss", "a": 0.0, "b": 0.0001, "text_a": "0.0", "text_b": "0.0001"}]
    code, difference = data(capsys, "diff", "StdlibTiny", "StdlibTiny")
    assert code == 0
    assert [difference[key] for key in ("knobs", "config", "weights", "totals")] == [[], [], [], {}]


def test_diff_shows_a_changed_spec_with_bytes_before_and_after(capsys):
    mesh = "--set=DEVICE_MESH_SHAPE=1,4"
    _, a = data(capsys, "weights", "StdlibTiny", mesh)
    _, b = data(capsys, "weights", "StdlibTiny", mesh, "--set=WEIGHTS.ffn_in_mf=P(None,None)")
    held = [next(r for r in t["weights"] if r["path"].endswith("ffn_in_mf"))["bytes_per_device"] for t in (a, b)]
    assert held[1] == 4 * held[0]
    _, difference = data(capsys, "diff", "StdlibTiny", "--set=WEIGHTS.ffn_in_mf=P(None,None)")
    assert difference["config"] == [], "placements of weights are in the weight table"
    assert difference["weights"][0]["changed"] == ["spec", "slot_spec"]


def test_a_class_that_differs_hides_the_fields_of_the_other(capsys):
    _, difference = data(capsys, "diff", "StdlibTiny", "--set=NORM=layer")
    paths = [row["path"] for row in difference["config"]]
    assert "task.model.final_norm" in paths
    assert "task.model.final_norm.use_bias" not in paths


def test_explain(capsys):
    _, steps = data(capsys, "explain", "tiny.StdlibSmall", "task.optimizer.learning_rate")
    assert [step["what"] for step in steps] == ["task.optimizer.learning_rate"] + ["LEARNING_RATE"] * 3
    assert steps[1]["where"].startswith("StdlibSmall, ")
    line = int(steps[1]["where"].rpartition(":")[2])
    assert "LEARNING_RATE" in (ROOT / "registry/experiments/tiny.py").read_text().splitlines()[line - 1]
    _, steps = data(capsys, "explain", "StdlibTiny", "NUM_LAYERS", "--set=NUM_LAYERS=9")
    assert (steps[0]["value"], steps[0]["where"]) == (9, "--set")
    _, steps = data(capsys, "explain", "StdlibTiny", "NUM_LAYERS", "--set=NUM_LAYERS=9", "--set=NUM_LAYERS=8")
    assert [step["value"] for step in steps] == [8, 9, 4]
    _, steps = data(capsys, "explain", "StdlibTiny", "stack/block/ffn/ffn_in_mf")
    assert [step["what"] for step in steps[1:]] == ["WEIGHTS.ffn_in_mf", "LAYOUT"]
    line = int(steps[1]["where"].rpartition(":")[2])
    assert "ffn_in_mf=" in (ROOT / "registry/layouts.py").read_text().splitlines()[line - 1]
    _, steps = data(capsys, "explain", "VQThroughputMqa", "stack/block/mixer/key_mkd")
    assert steps[1]["where"].startswith("VQMultiQueryLm, registry/templates/vq_lm.py:")
    _, steps = data(capsys, "explain", "StdlibTiny", "task.optimizer.min_dim_size_to_factor")
    assert steps[0]["where"] == "default of tasks.optimizers.optimizer.Optimizer"
    _, steps = data(capsys, "explain", "StdlibTiny", "NUM_LAYERS", "--smoke")
    assert steps[0] == {"what": "NUM_LAYERS", "value": 2, "where": "Smoke()", "text": "2"}


def test_tree_check_and_show(capsys, monkeypatch):
    _, tree = data(capsys, "tree")
    assert "tiny.StdlibSmall" in tree["children"]["tiny.StdlibTiny"]
    few = ["gpt.GptBase", "mu.MuTiny", "tiny.StdlibTiny", "vq.VQTiny"]  # test_entries checks them all
    monkeypatch.setattr(verbs, "_known_keys", lambda _: few)
    _, rows = data(capsys, "check")
    assert rows == [{"name": name, "ok": True, "reason": ""} for name in few]
    code, rows = data(capsys, "check", "StdlibTiny", "--set=DEVICE_MESH_SHAPE=1,3")
    assert code == 2
    assert "do not divide" in rows[0]["reason"]
    _, shown = data(capsys, "show", "StdlibTiny")
    assert shown["knobs"]["SEQ_LEN"]["owner"] == "tiny.StdlibTiny"
    assert shown["config"]["train.num_steps"] == 1200
    assert shown["config_text"]["train.num_steps"] == "1200"
    values = {name: knob["value"] for name, knob in shown["knobs"].items()}
    assert (values["DEVICE_MESH_SHAPE"], values["LEARNING_RATE"], values["OPTIMIZER"]) == ([-1, 1], 0.003, "adamw")
    assert (values["TBPTT_LEN"], values["DOCUMENT_MASKS"]) == (None, False)
    assert values["WEIGHTS"].startswith("Specs(")


def test_diff_distinguishes_none_from_absent_and_reads_output_of_show(capsys, tmp_path):
    (tmp_path / "older.json").write_text(registry(capsys, "show", "gshard.DenseLm8B2x2", "--json")[1])
    shown = json.loads(registry(capsys, "show", "StdlibTiny", "--json")[1])
    del shown["knobs"]["NUM_BUCKETS"]
    (tmp_path / "newer.json").write_text(json.dumps(shown))
    _, difference = data(capsys, "diff", str(tmp_path / "older.json"), str(tmp_path / "newer.json"))
    rows = {row["knob"]: row for row in difference["knobs"]}
    absent, none = rows["NUM_BUCKETS"], rows["HEAD_DIM"]
    assert (absent["b"], absent["text_b"]) == (None, None)
    assert (none["b"], none["text_b"]) == (None, "None")
    (tmp_path / "shown.json").write_text(registry(capsys, "show", "StdlibTiny", "--json")[1])
    assert registry(capsys, "diff", str(tmp_path / "shown.json"), "StdlibTiny")[0] == 0


@pytest.mark.parametrize("verb", [["list"], ["show", "StdlibTiny"], ["weights", "StdlibTiny"], ["tree"]])
def test_what_a_pipe_gets_is_plain_and_stable(capsys, verb):
    first, second = (registry(capsys, *verb)[1] for _ in range(2))
    assert first == second
    assert "\x1b" not in first
    assert "…" not in first, "nothing is cut"


def test_new_writes_an_experiment_that_passes_its_check(inside, tmp_path):
    done = inside("registry", "new", "tiny.StdlibTiny", "my_models.Wide")
    assert done.returncode == 0, done.stderr
    assert "my_models.py" in done.stdout
    assert inside("registry", "check", "my_models.Wide").returncode == 0
    assert inside("registry", "new", "my_models.Wide", "my_models.Wider").returncode == 0
    text = (tmp_path / "my_models.py").read_text()
    assert text.count("class Wide") == 2
    again = inside("registry", "new", "tiny.StdlibTiny", "my_models.Wide")
    assert again.returncode == 2
    assert "already has a class Wide" in again.stderr
    assert (tmp_path / "my_models.py").read_text() == text
    done = inside("registry", "diff", "my_models.Wide", "my_models.Wider", "--json")
    assert done.returncode == 0, done.stderr
    listed = inside("registry", "list", "--import=my_models", "--json")
    assert {"my_models.Wide", "my_models.Wider"} <= {row["name"] for row in json.loads(listed.stdout)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "Unknown verb 'lst'. Did you mean 'list'"),
        (["show"], "show takes one name (got 0 names)"),
        (["show", "StdlibTinny"], "Unknown experiment 'StdlibTinny'. Did you mean 'StdlibTiny'"),
        (["diff", "StdlibTiny"], "diff of one name needs --set"),
        (["list", "gtp.*"], "No experiment matches 'gtp.*'. Did you mean 'gpt.*'"),
        (["list", "StdlibTinny"], "No experiment matches 'StdlibTinny'. Did you mean 'StdlibTiny'"),
        (["list", "gshrad"], "No experiment matches 'gshrad'. Did you mean 'gshard'"),
        (["list", "nothing-like-it", "--json"], "No experiment matches 'nothing-like-it'. "),
        (["list", "--where", "parms>1"], "Unknown name 'parms' in --where. Did you mean 'params'"),
        (["list", "--where", "params>"], "is not a condition"),
        (["list", "--where", "__import__('os')"], "is not a condition"),
        (
            ["explain", "StdlibTiny", "NUM_LAYER"],
            "Unknown knob, config path or weight 'NUM_LAYER'. Did you mean 'NUM_LAYERS'",
        ),
        (["new", "StdlibTiny", "NoModule"], "is not of the form module.Name"),
        (["new", "StdlibTiny", "tasks.Wide"], "'tasks.Wide' has the name of one of Vortaro's own packages"),
        (["list", "--jsn"], "Unknown flag '--jsn'. Did you mean '--json'"),
        (["check", "StdlibTiny", "--NUM_LAYERS=6"], "are set by --set: --set=NUM_LAYERS=6."),
        ([], "the following arguments are required: verb"),
    ],
)
def test_bad_requests(capsys, arguments, message):
    code, out, err = registry(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_check_of_small_experiments_folds_their_meshes(capsys):
    code, text, _ = registry(capsys, "check", "--smoke", "gshard.DenseLm1T16x16", "llama.Llama3_70B")
    assert code == 0, text
    code, text, _ = registry(capsys, "check", "--smoke", "llama.Llama3_70B", "--set=DEVICE_MESH_SHAPE=16,8")
    assert code == 2
    assert "into 16 parts" in text or "into 8 parts" in text


def test_diff_of_compiled_updates(capsys):
    code, found = data(capsys, "diff", "CharTiny", "--set=DTYPE=bfloat16", "--plan")
    rows = {row["figure"]: (row["a"], row["b"]) for row in found["plan"]}
    assert code == 1
    assert rows["flops_per_step.bfloat16"] == (None, 33_554_432)
    assert rows["flops_per_step.float32"] == (44_040_192, 44_040_192 - 33_554_432)
    assert data(capsys, "diff", "CharTiny", "--set=DTYPE=bfloat16")[1]["plan"] is None


def test_diff_of_equal_compiled_updates(capsys):
    code, text, _ = registry(capsys, "diff", "gpt2.Gpt2XL", "gpt2.Gpt2Large", "--plan")
    assert (code, "The compiled updates of both small forms are equal." in text) == (1, True)


def test_check_lowers_updates(capsys):
    assert registry(capsys, "check", "CharTiny", "--lower")[:2] == (0, "ok   CharTiny\n")
    code, text, _ = registry(capsys, "check", "CharTiny", "--lower", "--set=DEVICE_MESH_SHAPE=1,3")
    assert (code, text.startswith("FAIL CharTiny: Dimension 256")) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["golden", "CharTiny", "--sections=plans"], "Did you mean 'plan'?"),
        (["show", "CharTiny", "--plan"], "--plan has no effect on show. Remove it."),
        (["list", "--lower"], "--lower has no effect on list. Remove it."),
    ],
)
def test_flags_of_plans(capsys, arguments, message):
    code, _, errors = registry(capsys, *arguments)
    assert (code, message in errors) == (2, True)
