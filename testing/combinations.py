"""Combinations of knobs: a pairwise covering array over all knobs with few values, and experiments of its rows."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from layers.errors import VortaroError
from layers.specs import P
from registry.checks import check
from registry.experiment import Experiment, knob_types
from registry.layouts import LAYOUTS
from registry.phase import Phase
from registry.templates.decoder import DecoderLm
from registry.templates.parts import FEED_FORWARDS, MIXERS
from registry.values import listed_values

Row = dict[str, Any]
Refused = frozenset[tuple[str, Any]]  # values of knobs that do not go together

# Knobs whose values need files, or that choose what is recorded and not what is computed.
LEFT_OUT = {"VOCABULARY", "DATA", "SENTENCEPIECE_MODEL", "FUNCTION_SPLITS", "SEQIO_OBJECTIVE", "SEQIO_CACHED"} | {
    "WARM_START_OPTIMIZER",
    "DEVICE_ORDER",
    "STAGED_ROWS",
    "WEIGHT_METRICS",
}
# Values of knobs whose type does not list them.
VALUES: dict[str, tuple[Any, ...]] = {
    "MIXER": (*MIXERS, ("attention", "vq")),
    "FFN": (*FEED_FORWARDS, ("experts", "dense"), ("gated", "none")),
    "LAYOUT": tuple(LAYOUTS),
    "SEQUENCE_AXIS": (None, "sequence"),
    "STACK": (P(None), P("stage")),
    "BIASES": ((), ("qkv",), ("attention_out",), ("ffn",), ("norm",), ("head",), ("qkv", "ffn", "norm")),
    "SCORE_FUNCTION": ("softmax", "squared_relu", "normalized_elu_plus_1"),
    "NUM_LAYERS": (4, 5),
    "NUM_KV_HEADS": (None, 2),
    "HEAD_DIM": (None, 12),
    "VALUE_DIM": (None, 20),
    "ROTARY_SHARE": (1.0, 0.5),
    "ROTARY_SCALING": ("none", "linear", "llama3", "yarn", ("none", "linear")),
    "ROTARY_FACTOR": (1.0, 4.0),
    "ROTARY_LENGTH": (None, 8),
    "ROTARY_LOW": (1.0, 2.0),
    "ROTARY_HIGH": (None, 6.0),
    "ROTARY_AMPLITUDE": (None, 1.5),
    "ATTENTION_WINDOW": (None, 6, (6, None)),
    "ATTENTION_SCALE": (None, 0.5),
    "ATTENTION_SOFTCAP": (None, 5.0),
    "EXTRA_LOGIT": (None, 0.0),
    "ATTENTION_IMPLEMENTATION": ("auto", "blockwise"),
    "PADDED_HEADS": (None, 8),
    "MAX_SEGMENTS": (None, 3),
    "HEAD_QK": (None, 8),
    "MEMORY_LEN": (None, 8),
    "RESEED_BELOW": (None, 0.01),
    "FFN_DIM": (None, 32),
    "EXPERT_DIM": (None, 16),
    "EXPERTS_PER_TOKEN": (2, 3),
    "CAPACITY_FACTOR": (2.0, None),
    "RECEIVE_FACTOR": (None, 4.0),
    "GATE_SCALE": (1.0, 2.5),
    "SHARED_EXPERTS": (0, 1),
    "BIAS_RATE": (0.0, 0.01),
    "SECOND_EXPERT": ("all", "random", "none"),
    "INIT_STDDEV": (None, 0.02),
    "NORM_EPSILON": (None, 1e-4),
    "EMBEDDING_STDDEV": (None, 0.5),
    "EMBEDDING_SCALE": (None, 2.0, "sqrt"),
    "LOGITS_SCALE": (1.0, 0.5, "inverse_sqrt"),
    "LOGITS_SOFTCAP": (None, 3.0),
    "CONTEXT_LEN": (None, 64),
    "PAD_VOCAB_TO": (1, 24),
    "DROPOUT": (0.0, 0.1),
    "LAYER_DROPOUT": (0.0, 0.1),
    "TBPTT_LEN": (None, 8),
    "STAGED_STEPS": (None, 4),
    "PHASES": ((), (Phase(), Phase(steps=4, schedule="sqrt", Z_LOSS=1e-3))),
    "SPIKE_WINDOW": (None, 8),
    "GRADIENT_ACCUMULATION": (1, 2),
    "ZERO_STAGE": (None, 0, 1, 2, 3),
    "LOSS_CHUNK": (None, 8),
    "REMAT": ("none", "full"),
    "UNROLL": (1, 4),
    "MUON_SCALE": (None, "shape"),
    "EMA_DECAY": (None, 0.99),
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
    "ATTENTION_BLOCK": 4,
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
        elif name not in LEFT_OUT and (listed := listed_values(hint)):
            found[name] = listed
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
    search = _Search(choices() if values is None else values, random.Random(seed))
    rows: list[Row] = []
    while search.missing and len(rows) != limit:
        best = search.best()
        if best is None:
            continue
        row = search.row(best)
        sentence = refusal(row)
        if sentence is None:
            search.missing -= search.covered(best)
            rows.append(row)
            continue
        named = knobs_in(sentence, list(row))
        if len(named) < 2:
            raise ValueError(f"The refusal of {row} does not name two of its knobs: {sentence}")
        search.refused[frozenset((name, best[name]) for name in named)] = sentence
    return rows, {frozenset(search.row(dict(each)).items()): text for each, text in search.refused.items()}


class _Search:
    """Pairs that no row has yet, and combinations that are refused, both by the numbers of values."""

    def __init__(self, values: Mapping[str, tuple[Any, ...]], rng: random.Random):
        self.values, self.rng = values, rng
        self.order = {name: place for place, name in enumerate(values)}
        self.missing: set[Any] = {
            ((a, i), (b, j))
            for a, b in itertools.combinations(values, 2)
            for i, j in itertools.product(range(len(values[a])), range(len(values[b])))
        }
        self.refused: dict[Refused, str] = {}

    def row(self, numbers: Mapping[str, int]) -> Row:
        """Returns the values of the knobs, in the order of the knobs."""
        return {name: self.values[name][numbers[name]] for name in self.values if name in numbers}

    def best(self) -> dict[str, int] | None:
        """Returns the best of several random rows with a missing pair; None, and drops the pair, if none has it."""
        start = self.rng.choice(sorted(self.missing))
        tries = [self._with(start) for _ in range(20)] if self._fits(dict(start)) else []
        found = [row for row in tries if row is not None]
        if not found:
            self.missing.discard(start)  # refused, alone or with every value of a third knob
            return None
        return max(found, key=lambda row: len(self.covered(row)))

    def covered(self, row: dict[str, int]) -> set[Any]:
        """Returns the missing pairs that a row has."""
        return {self._pair(a, b) for a, b in itertools.combinations(row.items(), 2)} & self.missing

    def _with(self, start: Any) -> dict[str, int] | None:
        row, names = dict(start), list(self.values)
        for name in self.rng.sample(names, len(names)):
            if name in row:
                continue
            possible = [k for k in range(len(self.values[name])) if self._fits({**row, name: k})]
            if not possible:
                return None
            gain = {k: sum(self._pair((name, k), item) in self.missing for item in row.items()) for k in possible}
            row[name] = self.rng.choice([k for k in possible if gain[k] == max(gain.values())])
        return row

    def _fits(self, row: dict[str, int]) -> bool:
        items = set(row.items())
        return not any(combination <= items for combination in self.refused)

    def _pair(self, a: tuple[str, int], b: tuple[str, int]) -> tuple[tuple[str, int], tuple[str, int]]:
        return (a, b) if self.order[a[0]] < self.order[b[0]] else (b, a)


def refused_by_a_third(rows: Sequence[Row], refused: Mapping[Refused, str]) -> dict[Refused, str | None]:
    """Returns the pairs of values that no row holds and no sentence refuses, with the knob that explains it.

    Each value of that knob is refused with one value of the pair; None without such a knob.
    """
    values = choices()
    held = {frozenset(pair) for row in rows for pair in itertools.combinations(row.items(), 2)}
    knobs = itertools.combinations(values, 2)
    pairs = [frozenset({(a, x), (b, y)}) for a, b in knobs for x in values[a] for y in values[b]]
    explains = lambda pair, knob: all(
        any(frozenset({item, (knob, value)}) in refused for item in pair) for value in values[knob]
    )
    return {
        pair: next((knob for knob in values if explains(pair, knob)), None)
        for pair in pairs
        if pair not in held and pair not in refused
    }


def experiment_of(row: Row, devices: int = 1) -> type[Experiment]:
    """Returns the experiment of a row, small, on a mesh of one or eight devices."""
    axes = LAYOUTS[row.get("LAYOUT", DecoderLm.LAYOUT)].axes
    sequence = () if row.get("SEQUENCE_AXIS") is None or "sequence" in axes else ("sequence",)
    stage = ("stage",) if row.get("STACK", P(None)) == P("stage") else ()
    mesh = MESHES.get(axes, (2, 2, 2))
    for _ in (*stage, *sequence):  # half of the devices of the largest axis
        largest = mesh.index(max(mesh))
        mesh = (2, *(size // 2 if axis == largest else size for axis, size in enumerate(mesh)))
    mesh = (1,) * len(mesh) if devices == 1 else mesh
    placed = {"MESH_AXES": (*stage, *sequence, *axes), "DEVICE_MESH_SHAPE": mesh}
    scaled = {"BASE_WIDTH": 16} if row.get("PARAMETRIZATION", "standard") != "standard" else {}
    staged = {"LENGTH_STAGES": (8,)} if row.get("STAGED_STEPS") else {}
    return DecoderLm.derive(**SIZES | placed | scaled | staged | row)


def refusal(row: Row, devices: int) -> str | None:
    """Returns the sentence by which `check` refuses a row on a number of devices; None if it passes."""
    try:
        check(experiment_of(row, devices)())
    except VortaroError as error:
        return str(error)
    return None


def knobs_in(sentence: str, knobs: Sequence[str]) -> set[str]:
    """Returns the knobs that a sentence names."""
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in sentence).split())
    return words & set(knobs)
