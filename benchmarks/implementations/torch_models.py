"""GPT-2 and a Llama in idiomatic torch: fused attention and AdamW; one product for GPT-2's queries, keys and values.

Options: "compiled" uses torch.compile.
"""

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from benchmarks.implementations.work import (
    BETAS,
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    NOT_A_TARGET,
    WEIGHT_DECAY,
    Gpt2Size,
    LlamaSize,
    Trainer,
)


class Block(nn.Module):
    """A layer, with the weight names of GPT-2's files."""

    def __init__(self, size: Gpt2Size):
        super().__init__()
        self.heads = size.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(size.width, 3 * size.width)})
        self.attn["c_proj"] = nn.Linear(size.width, size.width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(size.width, 4 * size.width)})
        self.mlp["c_proj"] = nn.Linear(4 * size.width, size.width)

    def forward(self, x):
        rows, length, width = x.shape
        query, key, value = (
            y.view(rows, length, self.heads, -1).transpose(1, 2)
            for y in self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attn["c_proj"](mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2; the forward pass returns the loss."""

    def __init__(self, size: Gpt2Size):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(size.vocab, size.width), nn.Embedding(size.context, size.width)
        self.h = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.ln_f = nn.LayerNorm(size.width)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_A_TARGET)


def rotated(x, cos, sin):
    """Rotates heads (..., positions, d); the pairs are i and i + d / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class LlamaBlock(nn.Module):
    """A layer, with the weight names of Llama's files."""

    def __init__(self, size: LlamaSize):
        super().__init__()
        self.heads, self.kv_heads = size.heads, size.kv_heads
        linear = lambda rows, columns: nn.Linear(rows, columns, bias=False)
        width, kv_width = size.width, size.width * size.kv_heads // size.heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.self_attn = nn.ModuleDict({"q_proj": linear(width, width), "o_proj": linear(width, width)})
        self.self_attn.update({"k_proj": linear(width, kv_width), "v_proj": linear(width, kv_width)})
        self.mlp = nn.ModuleDict({"gate_proj": linear(width, size.hidden), "up_proj": linear(width, size.hidden)})
        self.mlp["down_proj"] = linear(size.hidden, width)

    def forward(self, x, cos, sin):
        inputs = self.input_layernorm(x)
        query, key, value = (
            self.self_attn[name](inputs).view(*x.shape[:2], heads, -1).transpose(1, 2)
            for name, heads in (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads))
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        key, value = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).reshape(x.shape))
        inputs = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](functional.silu(self.mlp["gate_proj"](inputs)) * self.mlp["up_proj"](inputs))


class Llama(nn.Module):
    """A Llama with a tied head; the forward pass returns the loss."""

    def __init__(self, size: LlamaSize):
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.width)
        self.layers = nn.ModuleList(LlamaBlock(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, 1e-5)
        width = size.width // size.heads
        angles = torch.arange(size.context)[:, None] * 1e4 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = functional.linear(self.norm(x), self.embed_tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_A_TARGET)


def load(size: Gpt2Size, weights: str) -> Gpt2 | Llama:
    """Loads the model with the weights of a file in the size's format; GPT-2's matrices are (in, out) there."""
    state = {name: value for name, value in load_file(weights).items() if name != "lm_head.weight"}  # which is tied
    if isinstance(size, LlamaSize):
        model: Gpt2 | Llama = Llama(size)
        state = {name.removeprefix("model."): value for name, value in state.items()}
    else:
        model = Gpt2(size)
        state = {name.removeprefix("transformer."): value for name, value in state.items()}
        is_matrix = lambda name, value: name.startswith("h.") and value.ndim == 2
        state = {name: value.T.contiguous() if is_matrix(name, value) else value for name, value in state.items()}
    model.load_state_dict(state)
    return model


def updater(model: nn.Module, loss_of) -> Trainer:
    """Returns a trainer with the optimizer of all implementations."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "wpe" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "wpe" in name]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)

    def run(updates: int) -> float:
        loss = torch.tensor(float("nan"))
        for _ in range(updates):
            loss = loss_of()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return run


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    model = load(size, weights)
    tokens, targets = (torch.from_numpy(array).long() for array in (size.rows_of_tokens(), size.targets()))
    call = torch.compile(model) if "compiled" in options else model
    return updater(model, lambda: call(tokens, targets))
