"""Lingvo's numbers (tests/fixtures/lingvo.json), and its tiny models as experiments of ours."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from registry.build import build
from registry.templates.gshard_lm import GShardLm, MoeLm
from tasks.batch import Batch
from tasks.language_model_task import LanguageModelTask

NUMBERS = json.loads((Path(__file__).parents[2] / "fixtures" / "lingvo.json").read_text())
SIZES: dict[str, Any] = {
    "MODEL_DIM": 8,
    "NUM_HEADS": 2,
    "HEAD_DIM": 4,
    "FFN_DIM": 16,
    "VOCAB_SIZE": 16,
    "NUM_LAYERS": 2,
    "SEQ_LEN": 6,
    "BATCH_SIZE": 2,
    "DTYPE": "float32",
}
EXPERTS = {"NUM_EXPERTS": 4, "EXPERT_DIM": 12, "NUM_GROUPS": 2, "CAPACITY": 2, "CAPACITY_FACTOR": 0.0}
CASES: dict[str, tuple[type[GShardLm], dict[str, Any]]] = {
    "A": (GShardLm, {}),
    "A2": (GShardLm, {"LABEL_SMOOTHING": 0.1}),
    "A4": (GShardLm, {}),
    "B": (GShardLm, {"FFN": "dense", "ACTIVATION": "relu", "POSITIONS": "learned", "ATTENTION_SOFTCAP": 2.0}),
    "C": (MoeLm, {**EXPERTS, "SECOND_EXPERT": "all"}),
    "C3": (
        MoeLm,
        {**EXPERTS, "SECOND_EXPERT": "all", "FFN": ("gated_experts", "gated"), "EXPERT_ACTIVATION": "gelu_tanh"},
    ),
}
# Their names of weights to ours, inside a layer.
NAMES = {
    "dec_self_attention/w/wq": "mixer/query_ma",
    "dec_self_attention/w/wk": "mixer/key_ma",
    "dec_self_attention/w/wv": "mixer/value_ma",
    "dec_self_attention/w/wo": "mixer/attention_out_am",
    "dec_self_attention/wrb/wrb": "mixer/relative_bias/relative_bias_nr",
    "dense_relu_dense/w/wi": "ffn/ffn_in_mf",
    "dense_relu_dense/w/wi_0": "ffn/ffn_gate_mf",
    "dense_relu_dense/w/wi_1": "ffn/ffn_in_mf",
    "dense_relu_dense/w/wo": "ffn/ffn_out_fm",
    "moe/moe/wi": "ffn/expert_in_emf",
    "moe/moe/wi_0": "ffn/expert_gate_emf",
    "moe/moe/wi_1": "ffn/expert_in_emf",
    "moe/moe/wo": "ffn/expert_out_efm",
    "moe/ffw/top_2_gating/w": "ffn/router_me",
}


def task_of(case: str, **knobs: Any) -> LanguageModelTask:
    """The built task of a case."""
    cls, own = CASES[case]
    return build(cls.derive(**{**SIZES, **own, **knobs})().Task(), "task")


def batch() -> Batch:
    """The packed batch of all cases."""
    ids, labels, segments, positions = (
        np.array(NUMBERS["batch"][name], np.int32) for name in ("ids", "labels", "segment_ids", "segment_pos")
    )
    weights = ((segments != 0) & (labels > 0)).astype(np.float32)
    return Batch(inputs=ids, targets=labels, weights=weights, segment_ids=segments, positions=positions)


def place(case: str, name: str) -> tuple[str, int | None]:
    """Place of a weight of theirs in our model: path, and number in the stack."""
    if not name.startswith("decoder/") or "final" in name:
        whole = {"dec_emb": "embedding/embedding_vm", "dec_pos_emb": "positions/position_tm"}
        return whole.get(name.partition("/")[0], "final_norm/norm_scale_m"), None
    repeated = re.fullmatch(r"decoder/blocks/iter_(\d+)/blocks_body/layer_(\d+)/(.*)", name)
    plain = re.fullmatch(r"decoder/layer_(\d+)/(.*)", name)
    if repeated:
        layer, sub, rest = int(repeated[1]), int(repeated[2]), repeated[3]
    else:
        assert plain
        (layer, sub), rest = divmod(int(plain[1]), 2), plain[2]
    rest = ("ffn_norm" if sub else "mixer_norm") + "/norm_scale_m" if rest == "ln/w/scale" else NAMES[rest]
    if case.startswith("C"):
        return f"stack/block/blocks_{layer % 2}/{rest}", layer // 2
    return f"stack/block/{rest}", layer


def params_of(case: str, task: LanguageModelTask) -> Any:
    """The weights that the rule of the fixtures gives."""
    table = {row.path.removeprefix("params/"): row for row in task.weight_table()}
    flat = {path: np.full(row.shape, np.nan, np.float32) for path, row in table.items()}
    for j, (name, shape) in enumerate(NUMBERS["cases"][case]["variables"]):
        path, layer = place(case, name)
        wave = np.sin(0.37 * (np.arange(np.prod(shape)) + 1) + j).reshape(shape)
        factors = {"scale": 1 + 0.1 * wave, "embedding": wave, "bias": 0.5 * wave}
        value = factors.get(table[path].role, 0.3 * wave)
        target = flat[path] if layer is None else flat[path][layer]
        assert target.shape == tuple(shape), name
        target[...] = value
    assert not any(np.isnan(value).any() for value in flat.values())
    return task.weight_table().tree(lambda row: jnp.asarray(flat[row.path.removeprefix("params/")]))["params"]


def at(tree: Any, case: str, name: str) -> np.ndarray:
    """The part of a tree of ours that belongs to a weight of theirs."""
    path, layer = place(case, name)
    leaves = {"/".join(p.key for p in keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return np.asarray(leaves[path] if layer is None else leaves[path][layer])
