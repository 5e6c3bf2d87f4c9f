"""Weights that came in compute what torch computes with them, and those that went out too."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from runners.conversion.foreign_files import read_weights
from runners.convert import main
from tests.support.references.foreign import CONTEXT, LAYERS, VOCAB, WIDTH, bring_in, logits_of, send_out, tokens_of

torch = pytest.importorskip("torch", reason="needs torch, which make test-slow installs")
pytestmark = pytest.mark.slow
nn = torch.nn

HEADS = 6
SLOPES = [2.0**-n for n in (2, 4, 6, 8, 1, 3)]  # of six heads: those of four, then every other one of eight
FORMS = {
    "sequential, learned": (False, False, "little_gpt.LittleGpt124M", []),
    "sequential, alibi": (False, True, "little_gpt.LittleGpt124M", ["POSITIONS=alibi"]),
    "fused, learned": (True, False, "little_gpt.LittleGpt127M", ["POSITIONS=learned"]),
    "fused, alibi": (True, True, "little_gpt.LittleGpt127M", []),
}


class Attention(nn.Module):
    """Causal attention; scores fall with the distance where there are slopes."""

    def __init__(self, alibi):
        super().__init__()
        for name in ("query", "key", "value", "fc_resid"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.register_buffer("mask", torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.uint8).tril())
        self.alibi = alibi
        if alibi:
            self.register_buffer("slopes", torch.tensor(SLOPES))

    def forward(self, x):
        b, t, _ = x.shape
        heads = lambda y: y.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2)
        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        if self.alibi:
            place = torch.arange(t)
            scores = scores - self.slopes[:, None, None] * (place[:, None] - place[None, :])
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, -math.inf)
        return self.fc_resid((scores.softmax(-1) @ value).transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self, fused, alibi):
        super().__init__()
        self.fused = fused
        self.ln1 = nn.LayerNorm(WIDTH)
        if not fused:
            self.ln2 = nn.LayerNorm(WIDTH)
        self.attn = Attention(alibi)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 4 * WIDTH), "fc_resid": nn.Linear(4 * WIDTH, WIDTH)})

    def feed(self, x):
        return self.mlp["fc_resid"](nn.functional.gelu(self.mlp["fc1"](x)))

    def forward(self, x):
        if self.fused:
            normed = self.ln1(x)
            return x + self.attn(normed) + self.feed(normed)
        x = x + self.attn(self.ln1(x))
        return x + self.feed(self.ln2(x))


class LittleGpt(nn.Module):
    """The model in torch, written from its equations."""

    def __init__(self, fused, alibi):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        if not alibi:
            self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(fused, alibi) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens)
        if hasattr(self, "wpe"):
            x = x + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


def drawn(model, seed):
    """Large weights, so that every one of them shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            new = 0.2 * torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + new if "ln" in name or name == "norm.weight" else new)
    return model.eval()


def torch_logits(model):
    with torch.no_grad():
        out = model(torch.from_numpy(tokens_of()).long())
    return getattr(out, "logits", out).float().numpy()


@pytest.mark.parametrize("form", FORMS)
def test_little_gpt(tmp_path, form):
    fused, alibi, exp, knobs = FORMS[form]
    model = drawn(LittleGpt(fused, alibi), seed=len(form))
    whole = {"state_dict": model.state_dict(), "step": 3, "run_id": "x", "optimizer": {"state": {}}, "best_val": 2.5}
    torch.save(whole if fused else model.state_dict(), tmp_path / "model.pt")
    assert bring_in("little_gpt", tmp_path / "model.pt", exp, tmp_path / "run", *knobs) == 0
    logits = logits_of(tmp_path / "run", tokens_of())
    np.testing.assert_allclose(logits, torch_logits(model), atol=1e-4)
    assert np.abs(logits).max() > 3
    assert send_out("little_gpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    read_back = {key: torch.from_numpy(value) for key, value in load_file(tmp_path / "ours.safetensors").items()}
    fresh = LittleGpt(fused, alibi)
    missing, unexpected = fresh.load_state_dict(read_back, strict=False)
    assert not unexpected
    assert all(key.endswith(("attn.mask", "attn.slopes")) for key in missing)
    np.testing.assert_array_equal(torch_logits(fresh.eval()), torch_logits(model))


class NanoGpt(nn.Module):
    """nanoGPT's model, from its equations: GPT-2 with linear layers, the exact GELU, and biases or none."""

    def __init__(self, bias):
        super().__init__()
        layer = lambda: nn.ModuleDict(
            {
                "ln_1": nn.LayerNorm(WIDTH, bias=bias),
                "attn": nn.ModuleDict(
                    {"c_attn": nn.Linear(WIDTH, 3 * WIDTH, bias), "c_proj": nn.Linear(WIDTH, WIDTH, bias)}
                ),
                "ln_2": nn.LayerNorm(WIDTH, bias=bias),
                "mlp": nn.ModuleDict(
                    {"c_fc": nn.Linear(WIDTH, 4 * WIDTH, bias), "c_proj": nn.Linear(4 * WIDTH, WIDTH, bias)}
                ),
            }
        )
        parts = {"wte": nn.Embedding(VOCAB, WIDTH), "wpe": nn.Embedding(CONTEXT, WIDTH)}
        layers = {"h": nn.ModuleList(layer() for _ in range(LAYERS)), "ln_f": nn.LayerNorm(WIDTH, bias=bias)}
        self.transformer = nn.ModuleDict(parts | layers)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens):
        b, t = tokens.shape
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](torch.arange(t))
        heads = lambda y: y.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2)
        for layer in self.transformer["h"]:
            query, key, value = layer["attn"]["c_attn"](layer["ln_1"](x)).split(WIDTH, dim=2)
            mixed = nn.functional.scaled_dot_product_attention(heads(query), heads(key), heads(value), is_causal=True)
            x = x + layer["attn"]["c_proj"](mixed.transpose(1, 2).reshape(b, t, WIDTH))
            x = x + layer["mlp"]["c_proj"](nn.functional.gelu(layer["mlp"]["c_fc"](layer["ln_2"](x))))
        return self.lm_head(self.transformer["ln_f"](x))


@pytest.mark.parametrize("bias", [True, False])
def test_nanogpt(tmp_path, capsys, bias):
    model = drawn(NanoGpt(bias), seed=7)
    state = {f"_orig_mod.{key}": value for key, value in model.state_dict().items()}
    arguments = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "block_size": CONTEXT, "bias": bias}
    whole = {"model": state, "optimizer": {"state": {}}, "model_args": arguments, "iter_num": 5, "config": {}}
    torch.save(whole, tmp_path / "ckpt.pt")
    settings = ["DATA=synthetic", "DTYPE=float32", "BATCH_SIZE=8", "GRADIENT_ACCUMULATION=1", "DROPOUT=0.0"]
    flags = [f"--from={tmp_path / 'ckpt.pt'}", f"--workdir={tmp_path / 'run'}", *(f"--set={s}" for s in settings)]
    assert main(["import", "--format=nanogpt", "--exp=little_gpt.LittleGpt124M", *flags]) == 0
    assert f"NUM_HEADS={HEADS}" in capsys.readouterr().out
    np.testing.assert_allclose(logits_of(tmp_path / "run", tokens_of()), torch_logits(model), atol=1e-4)
    assert send_out("nanogpt", tmp_path / "run", tmp_path / "ours.safetensors") == 0
    read_back = {key: torch.from_numpy(value) for key, value in load_file(tmp_path / "ours.safetensors").items()}
    NanoGpt(bias).load_state_dict(read_back)  # strictly


@pytest.mark.parametrize("size", ["5GB", "100KB"])
def test_gpt2_of_transformers(tmp_path, size):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")
    sizes = {"vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    model = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), seed=5)
    model.save_pretrained(tmp_path / "theirs", max_shard_size=size)
    pieces = len(list((tmp_path / "theirs").glob("*.safetensors")))
    assert (pieces > 1) == (size == "100KB")
    assert bring_in("gpt2", tmp_path / "theirs", "gpt2.Gpt2Small", tmp_path / "run") == 0
    np.testing.assert_allclose(logits_of(tmp_path / "run", tokens_of()), torch_logits(model), atol=1e-4)
    assert send_out("gpt2", tmp_path / "run", tmp_path / "ours" / "model.safetensors") == 0
    (tmp_path / "ours" / "config.json").write_text((tmp_path / "theirs" / "config.json").read_text())
    fresh, found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert fresh.dtype == torch.float32
    np.testing.assert_array_equal(torch_logits(fresh.eval()), torch_logits(model))
    state = {key: torch.from_numpy(value) for key, value in load_file(tmp_path / "ours" / "model.safetensors").items()}
    transformers.GPT2LMHeadModel(model.config).load_state_dict(state)  # strictly
    index = {"weight_map": dict.fromkeys(state, "pytorch_model.bin")}
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    torch.save({key: value.bfloat16() for key, value in state.items()}, tmp_path / "pickled" / "pytorch_model.bin")
    assert bring_in("gpt2", tmp_path / "pickled", "gpt2.Gpt2Small", tmp_path / "bfloat16") == 0
    fresh.load_state_dict({key: value.bfloat16().float() for key, value in state.items()})
    np.testing.assert_allclose(logits_of(tmp_path / "bfloat16", tokens_of()), torch_logits(fresh), atol=1e-4)


class Code:
    def __reduce__(self):
        return (print, ("this must not run",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": Code()}, "cannot be read by torch.load with weights_only"),
        ([1, 2], "does not contain a state dict"),
        ({"a": 1}, "does not contain a state dict: a is not a tensor"),
        (None, "cannot be read by torch.load"),
    ],
)
def test_pickles_that_are_none(tmp_path, capsys, content, message):
    torch.save(content, tmp_path / "model.pt")
    if content is None:
        (tmp_path / "model.pt").write_bytes(b"no pickle at all")
    assert bring_in("little_gpt", tmp_path / "model.pt", "little_gpt.LittleGpt124M", tmp_path / "run") == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert "must not run" not in out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_complete_checkpoints_are_unwrapped(tmp_path, is_zip):
    state = {"wte.weight": torch.ones(2, 3, dtype=torch.bfloat16)}
    content = {"state_dict": state, "epoch": 1}
    torch.save(content, tmp_path / "model.pth", _use_new_zipfile_serialization=is_zip)
    file = read_weights(str(tmp_path / "model.pth"))
    assert (file.is_eight_bit, file.num_heads) == (False, None)
    assert file.arrays["wte.weight"].read().dtype == np.float32
