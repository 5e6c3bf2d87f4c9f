"""Name maps of Hugging Face's model families. Linear layers of torch have the shape (out, in)."""

from runners.conversion.rules import NameMap, Rule, rules_of

_EMBEDDING = (
    ("embed_tokens.weight", "embedding/embedding_vm", "v m"),
    ("lm_head.weight", "head/unembedding_mv", "v m"),
    ("norm.weight", "final_norm/norm_scale_m", "m"),
)
_ATTENTION = (
    ("layers.{i}.self_attn.q_proj.weight", "mixer/query_mnd", "(n d) m"),
    ("layers.{i}.self_attn.q_proj.bias", "mixer/query_bias_nd", "(n d)"),
    ("layers.{i}.self_attn.k_proj.weight", "mixer/key_mkd", "(k d) m"),
    ("layers.{i}.self_attn.k_proj.bias", "mixer/key_bias_kd", "(k d)"),
    ("layers.{i}.self_attn.v_proj.weight", "mixer/value_mkd", "(k d) m"),
    ("layers.{i}.self_attn.v_proj.bias", "mixer/value_bias_kd", "(k d)"),
    ("layers.{i}.self_attn.o_proj.weight", "mixer/attention_out_ndm", "m (n d)"),
    ("layers.{i}.self_attn.o_proj.bias", "mixer/attention_out_bias_m", "m"),
)
_FEED_FORWARD = (
    ("layers.{i}.mlp.gate_proj.weight", "ffn/ffn_gate_mf", "f m"),
    ("layers.{i}.mlp.gate_proj.bias", "ffn/ffn_gate_bias_f", "f"),
    ("layers.{i}.mlp.up_proj.weight", "ffn/ffn_in_mf", "f m"),
    ("layers.{i}.mlp.up_proj.bias", "ffn/ffn_in_bias_f", "f"),
    ("layers.{i}.mlp.down_proj.weight", "ffn/ffn_out_fm", "m f"),
    ("layers.{i}.mlp.down_proj.bias", "ffn/ffn_out_bias_m", "m"),
)
# Norms by their place in the block.
_INPUT_NORMS = (
    ("layers.{i}.input_layernorm.weight", "mixer_norm/norm_scale_m", "m"),
    ("layers.{i}.post_attention_layernorm.weight", "ffn_norm/norm_scale_m", "m"),
)
_OUTPUT_NORMS = (
    ("layers.{i}.post_attention_layernorm.weight", "mixer_post_norm/norm_scale_m", "m"),
    ("layers.{i}.post_feedforward_layernorm.weight", "ffn_post_norm/norm_scale_m", "m"),
)
_ALL_NORMS = (
    ("layers.{i}.input_layernorm.weight", "mixer_norm/norm_scale_m", "m"),
    *_OUTPUT_NORMS,
    ("layers.{i}.pre_feedforward_layernorm.weight", "ffn_norm/norm_scale_m", "m"),
)
# Norms of queries and keys: per head, or of all heads together.
_HEAD_NORMS = (
    ("layers.{i}.self_attn.q_norm.weight", "mixer/query_scale_d", "d"),
    ("layers.{i}.self_attn.k_norm.weight", "mixer/key_scale_d", "d"),
)
_JOINT_NORMS = (
    ("layers.{i}.self_attn.q_norm.weight", "mixer/query_scale_nd", "(n d)"),
    ("layers.{i}.self_attn.k_norm.weight", "mixer/key_scale_kd", "(k d)"),
)
_NEOX = (
    ("embed_in.weight", "embedding/embedding_vm", "v m"),
    ("embed_out.weight", "head/unembedding_mv", "v m"),
    ("layers.{i}.input_layernorm.weight", "mixer_norm/norm_scale_m", "m"),
    ("layers.{i}.input_layernorm.bias", "mixer_norm/norm_bias_m", "m"),
    ("layers.{i}.post_attention_layernorm.weight", "ffn_norm/norm_scale_m", "m"),
    ("layers.{i}.post_attention_layernorm.bias", "ffn_norm/norm_bias_m", "m"),
    (
        "layers.{i}.attention.query_key_value.weight",
        "mixer/query_mnd mixer/key_mkd mixer/value_mkd",
        "(n p d) m | (k p d) m | (k p d) m",
    ),
    (
        "layers.{i}.attention.query_key_value.bias",
        "mixer/query_bias_nd mixer/key_bias_kd mixer/value_bias_kd",
        "(n p d) | (k p d) | (k p d)",
    ),
    ("layers.{i}.attention.dense.weight", "mixer/attention_out_ndm", "m (n d)"),
    ("layers.{i}.attention.dense.bias", "mixer/attention_out_bias_m", "m"),
    ("layers.{i}.mlp.dense_h_to_4h.weight", "ffn/ffn_in_mf", "f m"),
    ("layers.{i}.mlp.dense_h_to_4h.bias", "ffn/ffn_in_bias_f", "f"),
    ("layers.{i}.mlp.dense_4h_to_h.weight", "ffn/ffn_out_fm", "m f"),
    ("layers.{i}.mlp.dense_4h_to_h.bias", "ffn/ffn_out_bias_m", "m"),
    ("final_layer_norm.weight", "final_norm/norm_scale_m", "m"),
    ("final_layer_norm.bias", "final_norm/norm_bias_m", "m"),
)


def _experts(router: str, gate: str, up: str, down: str) -> tuple[tuple[str, str, str], ...]:
    """Returns the lines of a mixture of gated experts, from the names of its router and of an expert's matrices."""
    return (
        (f"layers.{{i}}.{router}.gate.weight", "ffn/router_me", "e m"),
        (f"layers.{{i}}.{router}.experts.{{e}}.{gate}.weight", "ffn/expert_gate_emf", "f m"),
        (f"layers.{{i}}.{router}.experts.{{e}}.{up}.weight", "ffn/expert_in_emf", "f m"),
        (f"layers.{{i}}.{router}.experts.{{e}}.{down}.weight", "ffn/expert_out_efm", "m f"),
    )


def _family(name: str, *lines: tuple[tuple[str, str, str], ...]) -> NameMap:
    rules: tuple[Rule, ...] = rules_of(*_EMBEDDING, *_ATTENTION, *(line for part in lines for line in part))
    return NameMap(
        name,
        rules,
        prefix="model.",
        embedding="embed_tokens.weight",
        buffers=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    )


FAMILY_MAPS = {
    names.name: names
    for names in (
        _family("llama", _INPUT_NORMS, _FEED_FORWARD),
        _family("mistral", _INPUT_NORMS, _FEED_FORWARD),
        _family("mixtral", _INPUT_NORMS, _experts("block_sparse_moe", "w1", "w3", "w2")),
        _family("qwen2", _INPUT_NORMS, _FEED_FORWARD),
        _family("qwen3", _INPUT_NORMS, _HEAD_NORMS, _FEED_FORWARD),
        _family(
            "qwen3_moe",
            *(_INPUT_NORMS, _HEAD_NORMS, _FEED_FORWARD),
            _experts("mlp", "gate_proj", "up_proj", "down_proj"),
        ),
        _family("gemma2", _ALL_NORMS, _FEED_FORWARD),
        _family("gemma3_text", _ALL_NORMS, _HEAD_NORMS, _FEED_FORWARD),
        _family("olmo2", _OUTPUT_NORMS, _JOINT_NORMS, _FEED_FORWARD),
        NameMap(
            "gpt_neox",
            rules_of(*_NEOX),
            prefix="gpt_neox.",
            embedding="embed_in.weight",
            head="embed_out.weight",
            buffers=r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        ),
    )
}
