"""Name maps by format: the keys of other frameworks' weights and ours, one rule per weight."""

import dataclasses
from collections.abc import Iterable

from layers.errors import UsageError, did_you_mean
from runners.conversion.family_maps import FAMILY_MAPS
from runners.conversion.rules import BLOCK, NameMap, Rule, rules_of

# Linear layers of torch have the shape (out, in).
LITTLE_GPT = NameMap(
    "little_gpt",
    rules_of(
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
    rules_of(
        ("wte.weight", "embedding/embedding_vm", "v m"),
        ("lm_head.weight", "head/unembedding_mv", "v m"),
        ("wpe.weight", "positions/position_tm", "t m"),
        ("h.{i}.ln_1.weight", "mixer_norm/norm_scale_m", "m"),
        ("h.{i}.ln_1.bias", "mixer_norm/norm_bias_m", "m"),
        (
            "h.{i}.attn.c_attn.weight",
            "mixer/query_mnd mixer/key_mkd mixer/value_mkd",
            "m (p n d) | m (p k d) | m (p k d)",
        ),
        (
            "h.{i}.attn.c_attn.bias",
            "mixer/query_bias_nd mixer/key_bias_kd mixer/value_bias_kd",
            "(p n d) | (p k d) | (p k d)",
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

MAPS = {names.name: names for names in (LITTLE_GPT, GPT2, NANOGPT)} | FAMILY_MAPS
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
