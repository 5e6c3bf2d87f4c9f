"""Combinations of knobs: a pairwise covering array over all knobs with few values, and experiments of its rows."""

import itertools
import random
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from registry.experiment import Experiment, knob_types
from registry.layouts import LAYOUTS
from registry.templates.decoder import DecoderLm
from registry.templates.parts import FEED_FORWARDS, MIXERS
from registry.values import of_one_layer

Row = dict[str, Any]
Refused = frozenset[tuple[str, Any]]  # values of knobs that do not go together

# Knobs whose values need files, or that choose what is recorded and not what is computed.
LEFT_OUT = {"VOCABULARY", "DATA", "SENTENCEPIECE_MODEL", "FUNCTION_SPLITS", "SEQIO_OBJECTIVE", "SEQIO_CACHED"} | {
    "WARM_START_OPTIMIZER",
    "DEVICE_ORDER",
    "STAGED_ROWS",
}
# Values of knobs whose type does not list them.
VALUES: dict[str, tuple[Any, ...]] = {
    "MIXER": (*MIXERS, ("attention", "vq")),
    "FFN": (*FEED_FORWARDS, ("experts", "dense"), ("gated", "none")),
    "LAYOUT": tuple(LAYOUTS),
    "POSITIONS": ("rotary", "learned", "sinusoidal", "scaled_sinusoidal", "alibi", "relative", "distance", "none"),
    "BIASES": ((), ("qkv",), ("attention_out",), ("ffn",), ("norm",), ("head",), ("qkv", "ffn", "norm")),
    "SCORE_FUNCTION": ("softmax", "squared_relu", "normalized_elu_plus_1"),
    "NUM_LAYERS": (4, 5),
    "NUM_KV_HEADS": (None, 2),
    "HEAD_DIM": (None, 12),
    "VALUE_DIM": (None, 20),
    "ATTENTION_WINDOW": (None, 6, (6, None)),
    "ATTENTION_SCALE": (None, 0.5),
    "ATTENTION_SOFTCAP": (None, 5.0),
    "EXTRA_LOGIT": (None, 0.0),
    "PADDED_HEADS": (None, 8),
    "HEAD_QK": (None, 8),
    "MEMORY_LEN": (None, 8),
    "RESEED_BELOW": (None, 0.01),
    "FFN_DIM": (None, 32),
    "EXPERT_DIM": (None, 16),
    "SECOND_EXPERT": ("all", "random", "none"),
    "INIT_STDDEV": (None, 0.02),
    "NORM_EPSILON": (None, 1e-4),
    "EMBEDDING_STDDEV": (None, 0.5),
    "EMBEDDING_SCALE": (None, 2.0),
    "LOGITS_SCALE": (1.0, 0.5, "inverse_sqrt"),
    "PAD_VOCAB_TO": (1, 24),
    "DROPOUT": (0.0, 0.1),
    "LAYER_DROPOUT": (0.0, 0.1),
    "TBPTT_LEN": (None, 8),
    "STAGED_STEPS": (None, 4),
    "GRADIENT_ACCUMULATION": (1, 2),
    "ZERO_STAGE": (None, 0, 1, 2, 3),
    "LOSS_CHUNK": (None, 8),
    "REMAT": ("none", "full"),
    "UNROLL": (1, 2),
    "CLIP_VALUE": (None, 1.0),
    "Z_LOSS": (0.0, 1e-4),
    "LABEL_SMOOTHING": (0.0, 0.1),
}
SIZES: Row = {
    "MODEL_DIM": 32,
    "NUM_HEADS": 4,
    "SEQ_LEN": 16,
    "BATCH_SIZE": 16,
    "BLOCK_LEN": 4,
    "NUM_CODES": 8,
    "NUM_EXPERTS": 8,
    "NUM_GROUPS": 8,
    "NUM_STEPS": 12,
    "WARMUP_STEPS": 2,
    "LOG_EVERY": 1,
    "EVAL_EVERY": None,
    "EVAL_ROWS": 16,
    "SAVE_EVERY": 6,
}
MESHES = {("data", "model"): (4, 2), ("X", "Y"): (4, 2), ("data",): (8,)}  # for eight devices; others are (2, 2, 2)


def choices() -> dict[str, tuple[Any, ...]]:
    """Returns the values of every knob with few values, the template's own first."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, hint in knob_types(DecoderLm).items():
        if name in VALUES:
            found[name] = VALUES[name]
        elif name not in LEFT_OUT and hint is bool:
            found[name] = (False, True)
        elif name not in LEFT_OUT and typing.get_origin(of_one_layer(hint)) is Literal:
            found[name] = typing.get_args(of_one_layer(hint))
    own = {name: getattr(DecoderLm, name) for name in found}
    return {name: (own[name], *(value for value in found[name] if value != own[name])) for name in found}


def explore(
    refusal: Callable[[Row], str | None],
    values: Mapping[str, tuple[Any, ...]] | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[list[Row], dict[Refused, str]]:
    """Returns rows that pass and together hold every pair of values of two knobs, and combinations that are refused.

    A greedy pairwise covering array (Cohen et al. 1997, AETG, section 3.1). Where `refusal` rejects a row, the values
    of the knobs that its sentence names are avoided from then on.

    Args:
      refusal: returns the sentence that refuses a row; None if it passes.
      values: the values of each knob; None is those of `choices`.
      seed: seed of the choices among equally good rows.
      limit: number of rows after which to stop; None covers every pair.

    Raises:
      ValueError: a sentence does not name two knobs of the row.
    """
    values = choices() if values is None else values
    names, rng = list(values), random.Random(seed)
    order = {name: place for place, name in enumerate(names)}
    pair = lambda a, b: (a, b) if order[a[0]] < order[b[0]] else (b, a)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(range(len(values[a])), range(len(values[b])))
    }
    refused: dict[Refused, str] = {}
    rows: list[Row] = []

    def fits(row: dict[str, int]) -> bool:
        items = set(row.items())
        return not any(combination <= items for combination in refused)

    def candidate(start: Any) -> dict[str, int] | None:
        row = dict(start)
        for name in rng.sample(names, len(names)):
            if name in row:
                continue
            possible = [k for k in range(len(values[name])) if fits({**row, name: k})]
            if not possible:
                return None
            gain = {k: sum(pair((name, k), item) in missing for item in row.items()) for k in possible}
            row[name] = rng.choice([k for k in possible if gain[k] == max(gain.values())])
        return row

    covered = lambda row: {pair(a, b) for a, b in itertools.combinations(row.items(), 2)} & missing
    while missing and len(rows) != limit:
        start = rng.choice(sorted(missing))
        found = [row for row in (candidate(start) for _ in range(20)) if row is not None] if fits(dict(start)) else []
        if not found:
            missing.discard(start)  # refused, alone or with every value of a third knob
            continue
        best = max(found, key=lambda row: len(covered(row)))
        row = {name: values[name][best[name]] for name in names}
        sentence = refusal(row)
        if sentence is None:
            missing -= covered(best)
            rows.append(row)
            continue
        named = knobs_in(sentence, names)
        if len(named) < 2:
            raise ValueError(f"The refusal of {row} does not name two of its knobs: {sentence}")
        refused[frozenset((name, best[name]) for name in named)] = sentence
    return rows, {
        frozenset((name, values[name][k]) for name, k in combination): text for combination, text in refused.items()
    }


def experiment_of(row: Row, devices: int = 1) -> type[Experiment]:
    """Returns the experiment of a row, small, on a mesh of one or eight devices."""
    axes = LAYOUTS[row.get("LAYOUT", DecoderLm.LAYOUT)].axes
    mesh = (1,) * len(axes) if devices == 1 else MESHES.get(axes, (2, 2, 2))
    placed = {"MESH_AXES": axes, "DEVICE_MESH_SHAPE": mesh, "ZERO_AXIS": axes[0]}
    scaled = {"BASE_WIDTH": 16} if row.get("PARAMETRIZATION", "standard") != "standard" else {}
    staged = {"LENGTH_STAGES": (8,)} if row.get("STAGED_STEPS") else {}
    return DecoderLm.derive(**SIZES | placed | scaled | staged | row)


def knobs_in(sentence: str, knobs: Sequence[str]) -> set[str]:
    """Returns the knobs that a sentence names."""
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in sentence).split())
    return words & set(knobs)
