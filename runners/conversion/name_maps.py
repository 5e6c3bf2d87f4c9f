"""Name maps: the keys of other frameworks' weights and ours, one rule per weight, for import and export."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

import numpy as np

from layers.errors import UsageError, did_you_mean

BLOCK = "stack/block/"  # prefix of weights that are stacked over layers


@dataclasses.dataclass(frozen=True)
class Rule:
    """A key of the foreign format and our weight table's row; per layer if the key contains `{i}`."""

    theirs: str
    ours: str  # its last letters are our dimensions: "mixer/query_mnd" has m, n and d
    axes: str | None  # their dimensions in those letters, einops notation; None: the row unchanged, all layers
    part: tuple[int, int] = (0, 1)  # index and number of equal parts of their last dimension


@dataclasses.dataclass(frozen=True)
class NameMap:
    """A foreign file format: rules for its keys, and its conventions."""

    name: str
    rules: tuple[Rule, ...]
    activation: str = ""  # of its models; empty if files may hold any model
    prefix: str = ""  # of every key except the head's; optional in imported files, present in exported ones
    buffers: str = r"(?!)"  # regular expression of keys that are not weights
    spellings: tuple[tuple[str, str], ...] = ()  # alternative keys: (alternative, key of the rule)
    transposed: str = r"(?!)"  # regular expression of keys whose matrices files store transposed
    complete: bool = False  # whether a file has every key
    sizes_vary: bool = False  # whether an import takes the model's sizes from the file
    writes_head: bool = False  # whether a tied head is exported as well as the embedding

    def plain(self, key: str) -> str:
        """Normalizes a key of a file to that of the rules, without prefixes of torch.compile and DDP."""
        key = key.replace("_orig_mod.", "").removeprefix("module.")
        return dict(self.spellings).get(key, key).removeprefix(self.prefix)

    def turned(self, key: str, array: np.ndarray) -> np.ndarray:
        """Transposes the array of a plain key if the file's orientation differs from the rules' (an involution)."""
        return array.T if array.ndim == 2 and re.fullmatch(self.transposed, key) else array

    def is_buffer(self, key: str) -> bool:
        """Returns whether a plain key is a buffer, not a weight."""
        return re.fullmatch(self.buffers, key) is not None

    def count_known(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Counts the arrays that have a rule; fused matrices must be wider along the dimension of their parts."""
        parts = {rule.theirs: rule.part[1] for rule in self.rules}
        known = 0
        for name, array in arrays.items():
            key = self.plain(name)
            count = parts.get(re.sub(r"\.\d+\.", ".{i}.", key, count=1), 0)
            shape = self.turned(key, array).shape
            known += count == 1 or (count > 1 and (len(shape) != 2 or shape[1] > shape[0]))
        return known

    def count_layers(self, keys: Iterable[str]) -> int | None:
        """Counts the layers in the keys; None if no key has a layer number."""
        starts = {re.escape(rule.theirs.partition("{i}")[0]) for rule in self.rules if "{i}" in rule.theirs}
        found = [re.match(rf"(?:{'|'.join(starts)})(\d+)\.", self.plain(key)) for key in keys] if starts else []
        return max((int(match[1]) + 1 for match in found if match), default=None)


def _rules(*lines: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Returns rules; keys with `{i}` are per layer, rows separated by spaces are concatenated in the last dimension."""
    found = []
    for theirs, ours, axes in lines:
        rows, forms = ours.split(), axes.split(" | ")
        for index, row in enumerate(rows):
            path = (BLOCK if "{i}" in theirs else "") + row
            found.append(Rule(theirs, path, forms[index % len(forms)], (index, len(rows))))
    return tuple(found)


# Linear layers of torch have the shape (out, in).
LITTLE_GPT = NameMap(
    "little_gpt",
    _rules(
        ("wte.weight", "embedding/embedding_vm", "v m"),
        ("lm_head.weight", "head/unembedding_mv", "v m"),
        ("wte.norm.weight", "embedding_norm/norm_scale_m", "m"),
        ("wte.norm.bias", "embedding_norm/norm_bias_m", "m"),
        ("wpe.weight", "positions/position_tm", "t m"),
        ("blocks.{i}.ln1.weight", "mixer_norm/norm_scale_m", "m"),
        ("blocks.{i}.ln1.bias", "mixer_norm/norm_bias_m", "m"),
        ("blocks.{i}.attn.query.weight", "mixer/query_mnd", "(n d) m"),
        ("blocks.{i}.attn.query.bias", "mixer/query_bias_nd", "(n d)"),
        ("blocks.{i}.attn.key.weight", "mixer/key_mkd", "(k d) m"),
        ("blocks.{i}.attn.key.bias", "mixer/key_bias_kd", "(k d)"),
        ("blocks.{i}.attn.value.weight", "mixer/value_mkd", "(k d) m"),
        ("blocks.{i}.attn.value.bias", "mixer/value_bias_kd", "(k d)"),
        ("blocks.{i}.attn.fc_resid.weight", "mixer/attention_out_ndm", "m (n d)"),
        ("blocks.{i}.attn.fc_resid.bias", "mixer/attention_out_bias_m", "m"),
        ("blocks.{i}.ln2.weight", "ffn_norm/norm_scale_m", "m"),
        ("blocks.{i}.ln2.bias", "ffn_norm/norm_bias_m", "m"),
        ("blocks.{i}.mlp.fc1.weight", "ffn/ffn_in_mf", "f m"),
        ("blocks.{i}.mlp.fc1.bias", "ffn/ffn_in_bias_f", "f"),
        ("blocks.{i}.mlp.fc_resid.weight", "ffn/ffn_out_fm", "m f"),
        ("blocks.{i}.mlp.fc_resid.bias", "ffn/ffn_out_bias_m", "m"),
        ("norm.weight", "final_norm/norm_scale_m", "m"),
        ("norm.bias", "final_norm/norm_bias_m", "m"),
        ("head_q.weight", "pointer/pointer_query_mc", "c m"),
        ("head_k.weight", "pointer/pointer_key_mc", "c m"),
    ),
    activation="gelu_erf",
    buffers=r"blocks\.\d+\.attn\.(mask|slopes)",
    spellings=(("wte.ln_weight", "wte.norm.weight"), ("wte.ln_bias", "wte.norm.bias")),
    writes_head=True,
)

# Its matrices have the shape (in, out); queries, keys and values are concatenated.
GPT2 = NameMap(
    "gpt2",
    _rules(
        ("wte.weight", "embedding/embedding_vm", "v m"),
        ("lm_head.weight", "head/unembedding_mv", "v m"),
        ("wpe.weight", "positions/position_tm", "t m"),
        ("h.{i}.ln_1.weight", "mixer_norm/norm_scale_m", "m"),
        ("h.{i}.ln_1.bias", "mixer_norm/norm_bias_m", "m"),
        ("h.{i}.attn.c_attn.weight", "mixer/query_mnd mixer/key_mkd mixer/value_mkd", "m (n d) | m (k d) | m (k d)"),
        (
            "h.{i}.attn.c_attn.bias",
            "mixer/query_bias_nd mixer/key_bias_kd mixer/value_bias_kd",
            "(n d) | (k d) | (k d)",
        ),
        ("h.{i}.attn.c_proj.weight", "mixer/attention_out_ndm", "(n d) m"),
        ("h.{i}.attn.c_proj.bias", "mixer/attention_out_bias_m", "m"),
        ("h.{i}.ln_2.weight", "ffn_norm/norm_scale_m", "m"),
        ("h.{i}.ln_2.bias", "ffn_norm/norm_bias_m", "m"),
        ("h.{i}.mlp.c_fc.weight", "ffn/ffn_in_mf", "m f"),
        ("h.{i}.mlp.c_fc.bias", "ffn/ffn_in_bias_f", "f"),
        ("h.{i}.mlp.c_proj.weight", "ffn/ffn_out_fm", "f m"),
        ("h.{i}.mlp.c_proj.bias", "ffn/ffn_out_bias_m", "m"),
        ("ln_f.weight", "final_norm/norm_scale_m", "m"),
        ("ln_f.bias", "final_norm/norm_bias_m", "m"),
    ),
    activation="gelu_tanh",
    prefix="transformer.",
    buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
    complete=True,
    writes_head=True,
)

# GPT-2 with torch's linear layers of shape (out, in), the exact GELU, and optional biases.
NANOGPT = dataclasses.replace(
    GPT2,
    name="nanogpt",
    activation="gelu_erf",
    transposed=r"h\.\d+\.(attn|mlp)\.c_\w+\.weight",
    complete=False,
    sizes_vary=True,
)

MAPS = {names.name: names for names in (LITTLE_GPT, GPT2, NANOGPT)}
FORMATS = (*MAPS, "vortaro")


def name_map(format: str, rows: Iterable[str]) -> NameMap:
    """Returns the name map of a format; `vortaro` keeps the names of the rows.

    Raises:
      UsageError: the format is unknown.
    """
    if format == "vortaro":
        return NameMap("vortaro", tuple(Rule(row, row, None) for row in rows))
    if format not in MAPS:
        raise UsageError(f"Unknown format '{format}'. {did_you_mean(format, FORMATS)}")
    return MAPS[format]


# Knobs that add or remove rows: (part of the row's name, setting that adds it, setting that removes it).
KNOBS = (
    ("_bias_", "BIASES=qkv,attention_out,ffn,norm", "BIASES=()"),
    ("positions/", "POSITIONS=learned", "POSITIONS=alibi"),
    (f"{BLOCK}ffn_norm/", "RESIDUAL=sequential", "RESIDUAL=parallel_shared_norm"),
    ("embedding_norm/", "EMBEDDING_NORM=true", "EMBEDDING_NORM=false"),
    ("pointer/", "HEAD_QK=256", "HEAD_QK=none"),
    ("_scale_d", "QK_NORM=rms", "QK_NORM=none"),
    ("head/", "TIE_EMBEDDINGS=false", "TIE_EMBEDDINGS=true"),
)

# Places of biases (BIASES), by the beginning of the row's name.
BIASES = {"query_bias": "qkv", "attention_out_bias": "attention_out", "ffn_in_bias": "ffn", "norm_bias": "norm"}

# Knobs of sizes, by the letter of the dimension.
SIZES = {
    "v": "VOCAB_SIZE",
    "m": "MODEL_DIM",
    "t": "SEQ_LEN",
    "f": "FFN_DIM",
    "c": "HEAD_QK",
}

# Settings of the formats' models that weights do not determine: knob, path in the config, value.
SHARED_SETTINGS = (
    ("NORM=layer", "task.model.final_norm", "layers.norm.LayerNorm"),
    ("NORM_EPSILON=1e-5", "task.model.final_norm.epsilon", "1e-05"),
    ("ATTENTION_SCALE=none", "task.model.stack.block.mixer.scale", "None"),
    ("ATTENTION_WINDOW=none", "task.model.stack.block.mixer.window", "None"),
    ("INIT_STDDEV=0.02", "task.model.embedding.scale", "1.0"),
    ("PARAMETRIZATION=standard", "task.model.embedding.logits_scale", "1.0"),
)
