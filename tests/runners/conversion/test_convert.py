"""Weights of other codes: the results of imported weights, and that an export restores the imported file."""

import json

import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from registry.records.snapshot import snapshot
from registry.resolve import resolve
from runners.conversion.foreign_files import ABSMAX_BLOCK
from runners.convert import main
from runners.main import main as run_main
from runners.session import Session
from tests.support.references.foreign import (
    ALIBI,
    CONTEXT,
    LAYERS,
    SEQUENTIAL,
    VOCAB,
    WIDTH,
    bring_in,
    gpt2,
    little_gpt,
    logits_of,
    saved,
    send_out,
    tokens_of,
    variables_in,
    wave,
)

PORT = "gpt.GptSmol"  # tanh GELU, epsilon 1e-6, ALiBi, one branch after the other


def loss_of(workdir, length):
    tokens = tokens_of(length)
    logits = logits_of(workdir, tokens[:, :-1]).astype(np.float64)
    chosen = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return float(np.mean(np.log(np.sum(np.exp(logits), axis=-1)) - chosen))


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
        ({"learned": False, "fused": False, "bias": False}, PORT, ["BIASES=()"], 8.855827, 9.107794),
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
    # With the prefix, in pieces with an index; and padded rows stay zero and are not written.
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
    assert ("BIASES=qkv,attention_out,ffn,norm" if bias else "BIASES=()") in out
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


def test_nanogpt_and_gpt2_files_are_distinguished(tmp_path, capsys):
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
    assert bring_in("little_gpt", saved(tmp_path, halves), PORT, tmp_path / "run", "BIASES=()") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    weights = {key: value.astype(np.float32) for key, value in halves.items() if "bias" not in key}
    assert_same(load_file(tmp_path / "ours.safetensors"), weights)


def test_a_head_of_its_own(tmp_path):
    arrays = little_gpt(learned=False, fused=False) | {"lm_head.weight": wave(99, (VOCAB, WIDTH), "kernel")}
    assert bring_in("little_gpt", saved(tmp_path, arrays), PORT, tmp_path / "run", "TIE_EMBEDDINGS=false") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays)


def quantized(arrays):
    """8-bit codes for matrices, as bitsandbytes writes them, and the values that they encode."""
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
    codes["lm_head.weight"] = codes["lm_head.weight"] ^ 1  # quantized separately, so it may differ
    assert bring_in("little_gpt", saved(tmp_path, codes), ALIBI, tmp_path / "run") == 0
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), meant)
    assert max(np.abs(meant[key] - arrays[key]).max() for key in arrays) < 2e-3


@pytest.mark.parametrize("knob", ["POSITIONS=sinusoidal", "POSITIONS=rotary", "ATTENTION_SCALE=1.0"])
def test_what_no_weight_shows_is_noted(tmp_path, capsys, knob):
    arrays = little_gpt(learned=False, fused=True)
    assert bring_in("little_gpt", saved(tmp_path, arrays), ALIBI, tmp_path / "run", knob) == 0
    out = capsys.readouterr().out
    assert out.count("Note: ") == 1
    assert f"--set={knob.partition('=')[0]}=" in out


@pytest.mark.parametrize("name", ["vq.VQImageNet64Tbptt", "gshard.MoeLm8x2B", "gpt.GptStaticSgu"])
def test_our_own_format_takes_any_experiment(tmp_path, name):
    experiment = resolve(name, smoke=True)
    flat = traverse_util.flatten_dict(Session(experiment).functions.init().variables, sep="/")
    arrays = {path.removeprefix("params/"): np.asarray(value) for path, value in flat.items()}
    arrays = {key: np.asarray(wave(n, value.shape, "kernel")) for n, (key, value) in enumerate(sorted(arrays.items()))}
    common = ["--format=vortaro", f"--workdir={tmp_path / 'run'}"]
    file = saved(tmp_path, arrays)
    assert main(["import", *common, f"--exp={name}", "--smoke", f"--from={file}"]) == 0
    assert main(["export", *common, f"--to={tmp_path / 'ours.safetensors'}"]) == 0
    assert_same(load_file(tmp_path / "ours.safetensors"), arrays)
    assert set(arrays) == {row["path"].removeprefix("params/") for row in snapshot(experiment)["weights"]}


def test_a_run_resumes_from_converted_weights(tmp_path, capsys):
    source = saved(tmp_path, gpt2())
    assert bring_in("gpt2", source, "gpt2.Gpt2Small", tmp_path / "run", "NUM_STEPS=4", "DECAY_STEPS=3000") == 0
    output = capsys.readouterr().out
    assert f"Imported 59,328 weights of {source} as step 0 of " in output
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
    weights = load_file(tmp_path / "0.safetensors")
    np.testing.assert_array_equal(weights["transformer.h.0.mlp.c_fc.weight"], gpt2()["h.0.mlp.c_fc.weight"])
    after = load_file(tmp_path / "last.safetensors")["transformer.h.0.mlp.c_fc.weight"]
    assert 0 < np.abs(after - gpt2()["h.0.mlp.c_fc.weight"]).max() < 0.1
    assert bring_in("gpt2", source, "gpt2.Gpt2Small", tmp_path / "run") == 2
    assert "already has checkpoints. Choose another --workdir." in capsys.readouterr().err
