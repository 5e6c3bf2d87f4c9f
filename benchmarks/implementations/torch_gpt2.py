"""GPT-2 in idiomatic torch: one product for queries, keys and values, fused attention and AdamW.

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


def load(size: Gpt2Size, weights: str) -> Gpt2:
    """Loads the model with the weights of a file in GPT-2's format, whose matrices are (in, out)."""
    model, state = Gpt2(size), {}
    for name, value in load_file(weights).items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight":
            continue  # tied to the embedding
        matrix = name.startswith("h.") and value.ndim == 2
        state[name] = value.T.contiguous() if matrix else value
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
