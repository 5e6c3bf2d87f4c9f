"""Figures of Transformer-VQ's references (tests/fixtures/vq.npz), and their tiny models as ours."""

from pathlib import Path
from typing import Any

import numpy as np

from layers.attention.gated import FullAttention
from layers.attention.quantizer import VectorQuantizer
from layers.attention.vq import VQAttention
from layers.specs import Specs
from layers.weights.initializers import FanIn
from registry.build import build
from registry.templates.vq_lm import VQLm
from tasks.language_model_task import LanguageModelTask

NUMBERS = np.load(Path(__file__).parents[2] / "fixtures" / "vq.npz")
LAYERS, DIM, KEY, CODES = 2, 16, 8, 6
SPECS = VQLm().specs
HEADS: dict[str, dict[str, Any]] = {
    "shga": {"num_heads": 1, "num_kv_heads": 1, "value_dim": 32, "gated": True},
    "mqa": {"num_heads": 2, "num_kv_heads": 1, "value_dim": 8, "gated": False},
    "mha": {"num_heads": 2, "num_kv_heads": 2, "value_dim": 8, "gated": False},
}


def mixer(heads: str = "shga", quantizer: Any = (), full: bool = False, **fields: Any) -> Any:
    """One attention of the oracle's sizes."""
    common = {"specs": SPECS, "activations": Specs(), "model_dim": DIM, "key_dim": KEY, "initializer": FanIn()}
    common |= HEADS[heads]
    if full:
        return FullAttention(**common | fields)
    sizes = {"num_heads": HEADS[heads]["num_kv_heads"], "num_codes": CODES, "key_dim": KEY}
    books = VectorQuantizer(specs=SPECS, initializer=FanIn(), **sizes | {"commit_weight": 0.25} | dict(quantizer))
    return VQAttention(**common | {"block_length": 8, "memory_length": 8} | fields, quantizer=books)


# Their names of an attention's weights to ours.
NAMES = {
    "query_mnd": ("qkvg_producer/q_proj/kernel", "q_proj/kernel"),
    "key_mkd": ("qkvg_producer/k_proj/kernel", "k"),
    "value_mkf": ("qkvg_producer/v_proj/kernel", "v_of_kvg"),
    "gate_mnf": ("qkvg_producer/g_proj/kernel", "g"),
    "attention_out_nfm": ("res_proj/kernel",),
    "distance_mkd": ("xl_bias_producer/xl_r_proj/kernel", "r_proj/kernel"),
    "content_bias_nd": ("xl_bias_producer/xl_u", "u"),
    "position_bias_nd": ("xl_bias_producer/xl_v", "v"),
    "codebook_sum_kcd": ("quantizer/codebook_sum", "quantizer/c_sum"),
    "codebook_count_kc": ("quantizer/codebook_count", "quantizer/c_count"),
}


def attention_weights(prefix: str, heads: str = "shga", lead: tuple[int, ...] = ()) -> tuple[dict, dict]:
    """Weights and codebook of one attention under `prefix`, with leading dimensions `lead`."""
    read = {k.removeprefix(prefix): NUMBERS[k] for k in NUMBERS.files if k.startswith(prefix)}
    n, k, v = (HEADS[heads][name] for name in ("num_heads", "num_kv_heads", "value_dim"))
    if "kvg_proj/kernel" in read:
        read |= zip(("k", "v_of_kvg", "g"), np.split(read["kvg_proj/kernel"], [KEY, KEY + v], axis=-1), strict=True)
    sizes = {"m": DIM, "n": n, "k": k, "d": KEY, "f": v, "c": CODES}
    weights = {}
    for ours, names in NAMES.items():
        found = [read[name] for name in names if name in read]
        if found:
            weights[ours] = found[0].reshape(*lead, *(sizes[letter] for letter in ours.rpartition("_")[2]))
    codebook = {name: weights.pop(name) for name in list(weights) if name.startswith("codebook")}
    return weights, codebook


def variables(prefix: str, heads: str = "shga") -> dict[str, Any]:
    """Variables of `mixer(heads)` under `prefix`."""
    weights, codebook = attention_weights(prefix, heads)
    return {"params": weights, "codebooks": {"quantizer": codebook}}


def model_variables(prefix: str, heads: str = "shga") -> dict[str, Any]:
    """Variables of a model of ours with the weights of one of theirs, whichever code made it."""
    read = {k.removeprefix(prefix): NUMBERS[k] for k in NUMBERS.files if k.startswith(prefix)}
    blocks, books = [], []
    for j in range(2 if heads == "shga" else 1):
        if "token_embedder/embs" in read:
            layers = [attention_weights(f"{prefix}transformer_layers_{i}/scanned_attn{j + 1}/") for i in range(LAYERS)]
            (weights, codebook) = (
                {key: np.stack([layer[part][key] for layer in layers]) for key in layers[0][part]} for part in (0, 1)
            )
            norms = [f"transformer_layers_{i}/scanned_attn{j + 1}/input_ln" for i in range(LAYERS)]
            stacked = {ours: np.stack([read[f"{n}/{x}"] for n in norms]) for ours, x in _NORM.items()}
            blocks.append({"mixer": weights, "mixer_norm": stacked})
        else:
            weights, codebook = attention_weights(f"{prefix}stack/VQAttention_{j}/", heads, (LAYERS,))
            blocks.append({"mixer": weights})
        books.append({"mixer": {"quantizer": codebook}})
    if heads == "shga":
        block, book = ({f"blocks_{j}": part for j, part in enumerate(parts)} for parts in (blocks, books))
    else:
        block, book = blocks[0], books[0]
        dense = [read[f"stack/MultiLayerPerceptron_0/Dense_{i}/kernel"][:, 0] for i in (0, 1)]
        block["ffn"] = dict(zip(("ffn_in_mf", "ffn_out_fm"), dense, strict=True))
    table = read["token_embed/embedding"] if "token_embed/embedding" in read else read["token_embedder/embs"]
    head = {"unembedding_mv": read["out_proj/kernel"]}
    head |= {"unembedding_bias_v": read["out_proj/bias"]} if "out_proj/bias" in read else {}
    params = {"embedding": {"embedding_vm": table}, "head": head, "stack": {"block": block}}
    if "position_embedder/scale" in read:
        params["positions"] = {"position_scale_": read["position_embedder/scale"]}
        params["final_norm"] = {ours: read[f"out_ln/{x}"] for ours, x in _NORM.items()}
    return {"params": params, "codebooks": {"stack": {"block": book}}}


_NORM = {"norm_scale_m": "g", "norm_bias_m": "b"}


def model_task(**knobs: Any) -> LanguageModelTask:
    """The task of the oracle's models with these knobs."""
    sizes = {"NUM_LAYERS": 2 * LAYERS, "MODEL_DIM": DIM, "HEAD_DIM": KEY, "NUM_CODES": CODES, "BLOCK_LEN": 8}
    learned = {"COMMIT_WEIGHT": 0.25, "CLIP_NORM": 0.1, "LEARNING_RATE": 0.01, "WEIGHT_DECAY": 0.02}
    steps = {"WARMUP_STEPS": 1, "NUM_STEPS": 10, "SEQ_LEN": 32, "BATCH_SIZE": 2}
    other = {"TIE_EMBEDDINGS": False, "FINAL_NORM": False, "DTYPE": "float32", "DATA": "synthetic", "VOCAB_SIZE": 20}
    config = VQLm.derive(**sizes | learned | steps | other | knobs)().Task()
    config.optimizer.schedule.first_step = 0  # their first update has rate 0
    return build(config, "task")
