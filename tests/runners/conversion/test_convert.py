"""Weights of other codes: the numbers they come out as, the way there and back, and files that do not fit."""

import json

import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from layers.errors import UsageError
from registry.resolve import resolve
from registry.snapshot import snapshot
from runners.conversion.foreign_files import ABSMAX_BLOCK, read_weights
from runners.convert import main
from runners.main import main as run_main
from runners.session import Session
from tests.support.foreign import (
    CONTEXT,
    FUSED,
    LAYERS,
    VOCAB,
    WIDTH,
    bring_in,
    gpt2,
    little_gpt,
    logits_of,
    send_out,
    tokens_of,
    variables_in,
    wave,
)

SEQUENTIAL, ALIBI = "little_gpt.LittleGpt124M", "little_gpt.LittleGpt127M"
PORT = "gpt.GptSmol"  # tanh GELU, epsilon 1e-6, ALiBi, one branch after the other


def loss_of(workdir, length):
    tokens = tokens_of(length)
    logits = logits_of(workdir, tokens[:, :-1]).astype(np.float64)
    chosen = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return float(np.mean(np.log(np.sum(np.exp(logits), axis=-1)) - chosen))


def saved(tmp_path, arrays, name="theirs.safetensors"):
    save_file(arrays, tmp_path / name)
    return tmp_path / name


def assert_same(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype
        np.testing.assert_array_equal(ours[key], value, err_msg=key)


@pytest.mark.parametrize(
    ("file", "exp", "knobs", "long", "short"),
    [
        ({"learned": True, "fused": False}, SEQUENTIAL, [], 8.976846, None),
        ({"learned": True, "fused": True}, ALIBI, ["POSITIONS=learned"], 7.665184, None),
        ({"learned": False, "fused": False}, SEQUENTIAL, ["POSITIONS=alibi"], 7.680359, 7.829132),
        ({"learned": False, "fused": False}, PORT, [], 7.681414, 7.830158),
        ({"learned": False, "fused": False, "bias": False}, PORT, ["USE_BIAS=false"], 8.855827, 9.107794),
    ],
    ids=["sequential", "parallel", "torch twin", "port", "zero"],
)
def test_losses_of_little_gpt(tmp_path, capsys, file, exp, knobs, long, short):
    arrays = little_gpt(**file)
    assert bring_in("little_gpt", saved(tmp_path, arrays), exp, tmp_path / "run", *knobs) == 0
    out = capsys.readouterr().out
    assert ("Use --set=ACTIVATION=gelu_erf to match" in out) == ("gpt." in exp and "little" not in exp)
    assert loss_of(tmp_path / "run", 16) == pytest.approx(long, abs=3e-5)
    if short is not None:
        assert loss_of(tmp_path / "run", 11) == pytest.approx(short, abs=3e-5)
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays)


def test_logits_of_gpt2(tmp_path):
    """Logits of transformers 5.23 (GPT2LMHeadModel) on torch 2.15 in float64, on the same weights and tokens."""
    masks = {"h.0.attn.bias": np.ones((1, 1, 16, 16), np.uint8), "h.1.attn.masked_bias": np.float32([-1e4])}
    assert bring_in("gpt2", saved(tmp_path, gpt2() | masks), "gpt2.Gpt2Small", tmp_path / "run") == 0
    logits = logits_of(tmp_path / "run", tokens_of())
    np.testing.assert_allclose(logits[0, 0, :3], (5.158406, 5.592788, 0.019162), atol=5e-5)
    np.testing.assert_allclose(logits[1, -1, -3:], (-3.148765, 3.645681, 6.523784), atol=5e-5)
    np.testing.assert_allclose(logits[0, 7, 10:13], (4.434213, 6.277767, 1.37748), atol=5e-5)
    assert send_out("gpt2", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    written = load_file(tmp_path / "ours.safetensors")
    head = written.pop("lm_head.weight")
    assert_same(written, {f"transformer.{key}": value for key, value in gpt2().items()})
    np.testing.assert_array_equal(head, gpt2()["wte.weight"])
    # With the prefix, in pieces behind an index; and padded rows stay zero and are not written.
    pieces = {f"{i}.safetensors": dict(list(written.items())[i::2]) for i in range(2)}
    for name, piece in pieces.items():
        saved(tmp_path, piece, name)
    index = {"weight_map": {key: name for name, piece in pieces.items() for key in piece}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    padded = "task.model.embedding.table_rows=48"
    assert bring_in("gpt2", tmp_path, "gpt2.Gpt2Small", tmp_path / "again", padded) == 0
    table = variables_in(tmp_path / "again")[1]["params"]["embedding"]["embedding_vm"]
    assert table.shape == (48, WIDTH)
    assert not table[VOCAB:].any()
    assert send_out("gpt2", tmp_path / "again", tmp_path / "again.safetensors") == 0
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "ours.safetensors").read_bytes()


NANO = ["--format=nanogpt", "--exp=little_gpt.LittleGpt124M", "--set=DATA=synthetic", "--set=DTYPE=float32"]
NANO += ["--set=BATCH_SIZE=8", "--set=GRADIENT_ACCUMULATION=1", "--set=DROPOUT=0.0"]


def nano_gpt(arrays):
    """GPT-2's arrays as nanoGPT writes them: linear layers (out, in), names of a compiled model, a tied head."""
    linear = lambda key: ".attn.c_" in key or ".mlp.c_" in key
    turned = {key: value.T.copy() if value.ndim == 2 and linear(key) else value for key, value in arrays.items()}
    named = {f"_orig_mod.transformer.{key}": value for key, value in turned.items()}
    return named | {"_orig_mod.lm_head.weight": arrays["wte.weight"]}


@pytest.mark.parametrize("bias", [True, False])
def test_nanogpt_gives_the_sizes_and_holds_matrices_transposed(tmp_path, capsys, bias):
    ours = {key: value for key, value in gpt2().items() if bias or not key.endswith("bias")}
    file = saved(tmp_path, nano_gpt(ours))
    assert main(["import", *NANO, f"--from={file}", "--set=NUM_HEADS=6", f"--workdir={tmp_path / 'run'}"]) == 0
    out = capsys.readouterr().out
    sizes = (f"VOCAB_SIZE={VOCAB}", f"MODEL_DIM={WIDTH}", f"SEQ_LEN={CONTEXT}", f"NUM_LAYERS={LAYERS}")
    assert all(size in out for size in sizes), out
    assert f"USE_BIAS={str(bias).lower()}" in out
    assert "Note: " not in out, "the exact GELU is what the experiment has"
    assert send_out("nanogpt", tmp_path / "run", tmp_path / "again.safetensors") == 0
    plain = {key.removeprefix("_orig_mod."): value for key, value in nano_gpt(ours).items()}
    assert_same(load_file(tmp_path / "again.safetensors"), plain)
    params = variables_in(tmp_path / "run")[1]["params"]["stack"]["block"]
    np.testing.assert_array_equal(params["ffn"]["ffn_in_mf"][1], ours["h.1.mlp.c_fc.weight"])
    if bias:
        assert bring_in("gpt2", saved(tmp_path, ours), "gpt2.Gpt2Small", tmp_path / "same") == 0
        same = variables_in(tmp_path / "same")[1]["params"]["stack"]["block"]["mixer"]
        for row, value in params["mixer"].items():
            np.testing.assert_array_equal(value, same[row])


def test_nanogpt_and_gpt2_files_are_told_apart(tmp_path, capsys):
    file = saved(tmp_path, nano_gpt(gpt2()))
    assert bring_in("gpt2", file, "gpt2.Gpt2Small", tmp_path / "run") == 2
    assert "looks like a nanogpt file, not like gpt2. Use --format=nanogpt." in capsys.readouterr().err
    assert bring_in("nanogpt", saved(tmp_path, gpt2(), "gpt2.safetensors"), "gpt2.Gpt2Small", tmp_path / "run") == 2
    assert "looks like a gpt2 file, not like nanogpt. Use --format=gpt2." in capsys.readouterr().err
    named = main(["import", *NANO, f"--from={file}", "--set=NUM_LAYERS=3", f"--workdir={tmp_path / 'run'}"])
    assert named == 2
    assert "has 2 layers, but the experiment has 3. Use --set=NUM_LAYERS=2." in capsys.readouterr().err


def test_names_of_compiled_and_distributed_models(tmp_path):
    arrays = little_gpt(learned=False, fused=True)
    wrapped = {f"module._orig_mod.{key}": value for key, value in arrays.items()}
    assert bring_in("little_gpt", saved(tmp_path, wrapped), ALIBI, tmp_path / "run") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays)


def test_embedding_norms_and_pointers(tmp_path):
    arrays = little_gpt(learned=False, fused=True)
    head = {f"head_{name}.weight": wave(number, (8, WIDTH), "kernel") for number, name in enumerate("qk")}
    norm = {"wte.ln_weight": wave(3, (WIDTH,), "scale"), "wte.ln_bias": wave(4, (WIDTH,), "bias")}
    knobs = ("HEAD_QK=8", "EMBEDDING_NORM=true")
    assert bring_in("little_gpt", saved(tmp_path, arrays | head | norm), ALIBI, tmp_path / "run", *knobs) == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    renamed = {"wte.norm.weight": norm["wte.ln_weight"], "wte.norm.bias": norm["wte.ln_bias"]}
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays | head | renamed)
    params = variables_in(tmp_path / "run")[1]["params"]
    np.testing.assert_array_equal(params["pointer"]["pointer_query_mc"], head["head_q.weight"].T)


def test_biases_of_zeros_may_go_and_halves_are_widened(tmp_path):
    arrays = little_gpt(learned=False, fused=False)
    arrays = {key: np.zeros_like(value) if "bias" in key else value for key, value in arrays.items()}
    halves = {key: value.astype(np.float16) for key, value in arrays.items()}
    assert bring_in("little_gpt", saved(tmp_path, halves), PORT, tmp_path / "run", "USE_BIAS=false") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    kept = {key: value.astype(np.float32) for key, value in halves.items() if "bias" not in key}
    assert_same(load_file(tmp_path / "ours.safetensors"), kept)


def test_a_head_of_its_own(tmp_path):
    arrays = little_gpt(learned=False, fused=False) | {"lm_head.weight": wave(99, (VOCAB, WIDTH), "kernel")}
    assert bring_in("little_gpt", saved(tmp_path, arrays), PORT, tmp_path / "run", "TIE_EMBEDDINGS=false") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays)


def quantized(arrays):
    """8-bit codes for matrices, as bitsandbytes writes them, and what they stand for."""
    table = np.linspace(-1, 1, 256, dtype=np.float32)
    codes, meant = {}, {}
    for key, value in arrays.items():
        if value.ndim < 2:
            codes[key] = meant[key] = value
            continue
        name, starts = key.removesuffix(".weight"), range(0, value.size, ABSMAX_BLOCK)
        blocks = [value.ravel()[start : start + ABSMAX_BLOCK] for start in starts]
        absmax = np.float32([np.abs(block).max() for block in blocks])
        q = [np.rint((block / most + 1) * 127.5).astype(np.uint8) for block, most in zip(blocks, absmax, strict=True)]
        codes |= {key: np.concatenate(q).reshape(value.shape), f"{name}.absmax": absmax, f"{name}.code": table}
        back = [table[block] * most for block, most in zip(q, absmax, strict=True)]
        meant[key] = np.concatenate(back).reshape(value.shape)
    return codes, meant


def test_eight_bit_files(tmp_path):
    arrays = little_gpt(learned=False, fused=True)
    codes, meant = quantized(arrays)
    codes["lm_head.weight"] = codes["lm_head.weight"] ^ 1  # quantised by itself, so it may differ
    assert bring_in("little_gpt", saved(tmp_path, codes), ALIBI, tmp_path / "run") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), meant)
    assert max(np.abs(meant[key] - arrays[key]).max() for key in arrays) < 2e-3


@pytest.mark.parametrize("knob", ["POSITIONS=sinusoidal", "POSITIONS=rotary", "QK_NORM=rms", "ATTENTION_SCALE=1.0"])
def test_what_no_weight_shows_is_noted(tmp_path, capsys, knob):
    arrays = little_gpt(learned=False, fused=True)
    assert bring_in("little_gpt", saved(tmp_path, arrays), ALIBI, tmp_path / "run", knob) == 0
    out = capsys.readouterr().out
    assert out.count("Note: ") == 1
    assert f"--set={knob.partition('=')[0]}=" in out


@pytest.mark.parametrize("name", ["vq.VQImageNet64Tbptt", "gshard.MoeLm8x2B", "gpt.GptStaticSgu"])
def test_our_own_format_takes_any_experiment(tmp_path, name):
    experiment = resolve(name, smoke=True)
    flat = traverse_util.flatten_dict(Session(experiment).init().variables, sep="/")
    arrays = {path.removeprefix("params/"): np.asarray(value) for path, value in flat.items()}
    arrays = {key: np.asarray(wave(n, value.shape, "kernel")) for n, (key, value) in enumerate(sorted(arrays.items()))}
    common = ["--format=vortaro", f"--workdir={tmp_path / 'run'}"]
    file = saved(tmp_path, arrays)
    assert main(["import", *common, f"--exp={name}", "--smoke", f"--from={file}"]) == 0
    assert main(["export", *common, f"--to={tmp_path / 'ours.safetensors'}"]) == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays)
    assert set(arrays) == {row["path"].removeprefix("params/") for row in snapshot(experiment)["weights"]}


def test_a_run_goes_on_from_what_came_in(tmp_path, capsys):
    source = saved(tmp_path, gpt2())
    assert bring_in("gpt2", source, "gpt2.Gpt2Small", tmp_path / "run", "NUM_STEPS=4", "DECAY_STEPS=3000") == 0
    said = capsys.readouterr().out
    assert f"Imported 59,328 weights of {source} as step 0 of " in said
    sample = ["--mode=sample", "--prompt=1 2 3", "--max_new_tokens=5", "--no-stop"]
    assert run_main([f"--workdir={tmp_path / 'run'}", *sample]) == 0
    assert "step 0]" in capsys.readouterr().out
    assert run_main([f"--workdir={tmp_path / 'run'}", "--no-tensorboard"]) == 0
    record = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert record["parent"] == {"file": str(source), "format": "gpt2"}
    assert record["command"][2] == "runners.convert"
    assert [start["step"] for start in record["starts"]] == [0]
    capsys.readouterr()
    for which, step in (("last", 4), ("0", 0)):
        assert send_out("gpt2", tmp_path / "run", tmp_path / f"{which}.safetensors", f"--checkpoint={which}") == 0
        assert f"of gpt2.Gpt2Small at step {step} to " in capsys.readouterr().out
    kept = load_file(tmp_path / "0.safetensors")
    np.testing.assert_array_equal(kept["transformer.h.0.mlp.c_fc.weight"], gpt2()["h.0.mlp.c_fc.weight"])
    after = load_file(tmp_path / "last.safetensors")["transformer.h.0.mlp.c_fc.weight"]
    assert 0 < np.abs(after - gpt2()["h.0.mlp.c_fc.weight"]).max() < 0.1
    assert bring_in("gpt2", source, "gpt2.Gpt2Small", tmp_path / "run") == 2
    assert "already has checkpoints. Choose another --workdir." in capsys.readouterr().err


def without(arrays, *starts):
    return {key: value for key, value in arrays.items() if not key.startswith(starts)}


PLAIN = little_gpt(learned=True, fused=False)
ADAPTER = {"blocks.0.adapter_attn.bottleneck.0.weight": np.zeros((4, 4), np.float32)}
MISFITS = {
    "adapters": (PLAIN | ADAPTER, [], "has adapters (blocks.0.adapter_attn.bottleneck.0.weight), which are not"),
    "no positions": (
        without(PLAIN, "wpe"),
        [],
        "has no wpe.weight for positions/position_tm. Use --set=",
    ),
    "positions": (
        PLAIN,
        ["POSITIONS=alibi"],
        "has wpe.weight, but the experiment has no positions/position_tm. ",
    ),
    "one norm": (PLAIN, FUSED, "Use --set=PARALLEL_RESIDUAL=false"),
    "no second norm": (
        {key: value for key, value in PLAIN.items() if "ln2" not in key},
        [],
        "Use --set=PARALLEL_RESIDUAL=true --set=SHARED_NORM=true",
    ),
    "biases": (PLAIN, ["USE_BIAS=false"], "no stack/block/mixer_norm/norm_bias_m. Use --set=USE_BIAS=true"),
    "no biases": (
        little_gpt(learned=True, fused=False, bias=False),
        [],
        "has no blocks.0.ln1.bias for stack/block/mixer_norm/norm_bias_m. Use --set=USE_BIAS=false",
    ),
    "layers": (PLAIN, ["NUM_LAYERS=3"], "has 2 layers, but the experiment has 3. Use --set=NUM_LAYERS=2"),
    "a missing layer's key": (without(PLAIN, "blocks.1.mlp.fc1.w"), [], "has no blocks.1.mlp.fc1.weight for"),
    "vocabulary": (
        PLAIN,
        ["VOCAB_SIZE=48"],
        "in the experiment, for embedding/embedding_vm. Use --set=VOCAB_SIZE=40.",
    ),
    "width": (PLAIN, ["MODEL_DIM=96"], "wte.weight is 40x48 in"),
    "context": (PLAIN, ["SEQ_LEN=32"], "for positions/position_tm. Use --set=SEQ_LEN=16."),
    "hidden": (PLAIN, ["FFN_DIM=96"], "in the experiment, for stack/block/ffn/ffn_in_bias_f. Use --set=FFN_DIM=192."),
    "a shape": (
        PLAIN | {"blocks.1.attn.key.weight": np.zeros((40, 48), np.float32)},
        [],
        "blocks.1.attn.key.weight is 40x48 in",
    ),
    "an unknown key": (
        PLAIN | {"blocks.0.attn.qurey.weight": np.zeros(3, np.float32)},
        [],
        "which is unknown in little_gpt files. Did you mean 'blocks.0.attn.query.weight'",
    ),
    "another head": (
        PLAIN | {"lm_head.weight": PLAIN["wte.weight"] + 1},
        [],
        "has a lm_head.weight that differs from its wte.weight. Use --set=TIE_EMBEDDINGS=false.",
    ),
    "no head": (
        without(PLAIN, "lm_head"),
        ["TIE_EMBEDDINGS=false"],
        "has no lm_head.weight for head/unembedding",
    ),
    "another format": (gpt2(), [], "looks like a gpt2 file, not like little_gpt. Use --format=gpt2."),
    "no format": ({"a": np.zeros(3, np.float32)}, [], "has no key of little_gpt files (got a)."),
    "another mixer": (PLAIN, ["STATIC_SGU=true"], "files have no key for stack/block/mixer/mixer/"),
    "a pointer": (
        PLAIN,
        ["HEAD_QK=8"],
        "has no head_q.weight for pointer/pointer_query_mc. Use --set=HEAD_QK=none",
    ),
    "another wrapping": (
        PLAIN | {"wte.absmax": np.zeros(1, np.float32)},
        [],
        "has wte.absmax, but not an 8-bit wte.weight with a wte.code of 256 values.",
    ),
    "8 bits of other blocks": (
        PLAIN
        | {"wte.weight": np.zeros((VOCAB, WIDTH), np.uint8)}
        | {"wte.absmax": np.zeros(3, np.float32), "wte.code": np.zeros(256, np.float32)},
        [],
        "has 3 values in wte.absmax, but wte.weight has 1 blocks of 4096.",
    ),
}


def assert_refused(capsys, code, says, workdir):
    out, err = capsys.readouterr()
    assert code == 2
    assert says in err
    assert err.startswith("vortaro: ")
    assert err.count("\n") == 1, "one line"
    assert "Traceback" not in out + err
    assert not workdir.exists(), "nothing half-written"


@pytest.mark.parametrize("case", MISFITS)
def test_files_that_do_not_fit(tmp_path, capsys, case):
    arrays, knobs, says = MISFITS[case]
    code = bring_in("little_gpt", saved(tmp_path, arrays), SEQUENTIAL, tmp_path / "run", *knobs)
    assert_refused(capsys, code, says, tmp_path / "run")


def test_files_that_cannot_be_read(tmp_path, capsys):
    whole = saved(tmp_path, PLAIN).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    (tmp_path / "text.safetensors").write_text("these are no weights, though the name says so")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    for name, says in {
        "none.safetensors": "cannot be read: No such file or directory.",
        "cut.safetensors": "is damaged or not a safetensors file: ",
        "text.safetensors": "is damaged or not a safetensors file: ",
        "notes.txt": "A weight file must end in .safetensors, .pt, .pth, .bin (got ",
        "index.json": "gone.safetensors' cannot be read: No such file or directory.",
        "other.json": "is not a weight index: weight_map, from keys to files, is missing.",
        "empty": "has none of model.safetensors.index.json, model.safetensors, pytorch_model.bin.index.json",
    }.items():
        code = bring_in("little_gpt", tmp_path / name, SEQUENTIAL, tmp_path / "run")
        assert_refused(capsys, code, says, tmp_path / "run")


def test_pickles_need_torch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"a pickle of torch, needs the package torch\. Run pip .*\.\[torch\]'\."):
        read_weights(str(tmp_path / "model.pt"))


IMPORT = ["import", "--format=gpt2", "--from=x.safetensors", "--exp=gpt2.Gpt2Small"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["imprt"], "Unknown verb 'imprt'. Did you mean 'import'"),
        (["import"], "import requires --format."),
        ([*IMPORT[:2], "--exp=gpt2.Gpt2Small"], "import requires --from."),
        (IMPORT[:3], "import requires --exp."),
        ([*IMPORT, "--format=gtp2"], "Unknown format 'gtp2'. Did you mean 'gpt2'"),
        ([*IMPORT, "--fromm=x"], "Unknown flag '--fromm=x'. Did you mean '--from'"),
        ([*IMPORT, "--to=x.safetensors"], "--to is a flag of export (got import)."),
        ([*IMPORT, "--exp=gpt2.Gpt2Smal"], "Unknown experiment 'gpt2.Gpt2Smal'. Did you mean 'gpt2.Gpt2Small'"),
        ([*IMPORT, "--set=NUM_HEADS=7"], "NUM_HEADS must divide"),
        (["export", "--format=gpt2", "--to=x.bin"], "must end in .safetensors (got 'x.bin')"),
        (["export", "--format=gpt2", "--to=x.safetensors"], "Train first"),
        (["export", "--format=gpt2", "--to=x.safetensors", "--smoke"], "--smoke is a flag of import (got export)."),
        (["export", "--format=gpt2"], "export requires --to."),
    ],
)
def test_bad_requests(tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, gpt2(), "x.safetensors")
    code = main([*arguments, f"--workdir={tmp_path / 'run'}"])
    assert_refused(capsys, code, says, tmp_path / "run")


def test_exports_that_the_format_has_no_room_for(tmp_path, capsys):
    fused = saved(tmp_path, little_gpt(learned=False, fused=True))
    assert bring_in("little_gpt", fused, ALIBI, tmp_path / "run") == 0
    capsys.readouterr()
    to = tmp_path / "ours.safetensors"
    code = send_out("gpt2", tmp_path / "run", to)
    assert_refused(capsys, code, "gpt2 files require wpe.weight, but the experiment has no positions/position_tm", to)
    (tmp_path / "file").write_text("")
    code = send_out("little_gpt", tmp_path / "run", tmp_path / "file" / "ours.safetensors")
    assert_refused(capsys, code, "cannot be written to", to)
    code = send_out("little_gpt", tmp_path / "run", to, "--checkpoint=7")
    assert_refused(capsys, code, "Unknown checkpoint '7'", to)
