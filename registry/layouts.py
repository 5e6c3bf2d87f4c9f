"""Layouts: named tables with the placement of every weight and of activations on the device mesh.

A layout has a row for each weight that any part of the templates can bring, so that parts combine freely. An experiment
names one (LAYOUT) and states the rows that differ (WEIGHTS, ACTIVATIONS). Letters of dimensions: v vocabulary, m model,
n heads, k heads of keys and values, d head size, a heads times head size, f hidden units or values, e experts, c codes
or pointer size, t positions, r buckets.
"""

import dataclasses
from typing import Any

from layers.collectives import without
from layers.errors import UsageError, did_you_mean
from layers.specs import P, Specs, axes_of, show_spec
from registry.layout import Layout

# Heads, hidden units and vocabulary over "model" (Shoeybi et al. 2019, Megatron-LM), the other dimension over "data"
# (fully sharded); the batch over "data". Experts are split from each other over "data".
FULLY_SHARDED = Layout(
    axes=("data", "model"),
    weights=Specs(
        embedding_vm=P("model", "data"),
        unembedding_mv=P("data", "model"),
        unembedding_bias_v=P("model"),
        position_tm=P(None, "data"),
        position_scale_=P(),
        query_mnd=P("data", "model", None),
        key_mkd=P("data", "model", None),
        value_mkd=P("data", "model", None),
        value_mkf=P("data", "model", None),
        gate_mnf=P("data", "model", None),
        attention_out_ndm=P("model", None, "data"),
        attention_out_nfm=P("model", None, "data"),
        query_ma=P("data", "model"),
        key_ma=P("data", "model"),
        value_ma=P("data", "model"),
        attention_out_am=P("model", "data"),
        distance_mkd=P("data", "model", None),
        codebook_sum_kcd=P("model", None, None),
        codebook_count_kc=P("model", None),
        ffn_in_mf=P("data", "model"),
        ffn_gate_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
        router_me=P(None, None),
        router_bias_e=P(None),
        expert_in_emf=P("data", None, "model"),
        expert_gate_emf=P("data", None, "model"),
        expert_out_efm=P("data", "model", None),
        pointer_query_mc=P("data", None),
        pointer_key_mc=P("data", None),
        norm_scale_m=P(None),
        norm_scale_=P(),
        norm_bias_m=P(None),
        query_scale_d=P(None),
        key_scale_d=P(None),
        query_scale_nd=P("model", None),
        key_scale_kd=P("model", None),
        attention_gain_n=P("model"),
        relative_bias_nr=P("model", None),
        content_bias_nd=P("model", None),
        position_bias_nd=P("model", None),
        query_bias_nd=P("model", None),
        key_bias_kd=P("model", None),
        value_bias_kd=P("model", None),
        attention_out_bias_m=P(None),
        ffn_in_bias_f=P("model"),
        ffn_gate_bias_f=P("model"),
        ffn_out_bias_m=P(None),
    ),
    activations=Specs(
        tokens_bs=P("data", None),
        residual_bsm=P("data", None, None),
        query_bsnd=P("data", None, "model", None),
        key_bskd=P("data", None, "model", None),
        value_bskd=P("data", None, "model", None),
        value_bskf=P("data", None, "model", None),
        gate_bsnf=P("data", None, "model", None),
        mixed_bsnf=P("data", None, "model", None),
        scores_brkglt=P("data", None, "model", None, None, None),
        cache_brkcf=P("data", None, "model", None, None),
        hidden_bsf=P("data", None, "model"),
        group_gsm=P("data", None, None),
        combine_gsec=P("data", None, None, None),
        dispatched_gecm=P("data", None, None, None),
        expert_in_egcm=P("data", None, None, None),
        expert_hidden_egcf=P("data", None, None, "model"),
        expert_out_egcm=P("data", None, None, None),
        returned_gecm=P("data", None, None, None),
        logits_bsv=P("data", None, "model"),
    ),
)

# The same with experts on an axis of their own: groups of tokens stay on "data", and are exchanged over "expert".
EXPERT_AXIS = FULLY_SHARDED.but(
    "expert",
    weights=Specs(
        expert_in_emf=P("expert", "data", "model"),
        expert_gate_emf=P("expert", "data", "model"),
        expert_out_efm=P("expert", "model", "data"),
    ),
    activations=Specs(
        expert_in_egcm=P("expert", "data", None, None),
        expert_hidden_egcf=P("expert", "data", None, "model"),
        expert_out_egcm=P("expert", "data", None, None),
    ),
)

# Lingvo's (Xu et al. 2021, GSPMD): every matrix over both axes, activations of the residual stream too.
GSHARD_2D = FULLY_SHARDED.but(
    weights=Specs(
        embedding_vm=P(None, "model"),
        position_tm=P(None, "model"),
        relative_bias_nr=P(None, None),
    ),
    activations=Specs(
        residual_bsm=P("data", None, "model"),
        mixed_bsnd=P("data", None, "model", None),
    ),
)

# The same for mixtures of experts: weights outside the experts are small, and replicated along "data".
GSHARD_EXPERTS = GSHARD_2D.but(
    weights=Specs(
        unembedding_mv=P(None, "model"),
        query_mnd=P(None, "model", None),
        key_mkd=P(None, "model", None),
        value_mkd=P(None, "model", None),
        value_mkf=P(None, "model", None),
        gate_mnf=P(None, "model", None),
        attention_out_ndm=P("model", None, None),
        attention_out_nfm=P("model", None, None),
        query_ma=P(None, "model"),
        key_ma=P(None, "model"),
        value_ma=P(None, "model"),
        attention_out_am=P("model", None),
        distance_mkd=P(None, "model", None),
        ffn_in_mf=P(None, "model"),
        ffn_gate_mf=P(None, "model"),
        ffn_out_fm=P("model", None),
        pointer_query_mc=P(None, None),
        pointer_key_mc=P(None, None),
    ),
)

# "2D finalized" of GSPMD (Xu et al. 2021, section 5.1), as the Mu-Transformer has it: mesh rows "X", mesh columns "Y".
# Matrices of a block over both; heads, hidden units and the residual stream over Y; embedding and head over Y alone.
MUP_2D = Layout(
    axes=("X", "Y"),
    weights=Specs(
        embedding_vm=P(None, "Y"),
        unembedding_mv=P("Y", None),
        unembedding_bias_v=P(None),
        position_tm=P(None, "Y"),
        position_scale_=P(),
        query_mnd=P("X", "Y", None),
        key_mkd=P("X", "Y", None),
        value_mkd=P("X", "Y", None),
        value_mkf=P("X", "Y", None),
        gate_mnf=P("X", "Y", None),
        attention_out_ndm=P("Y", None, "X"),
        attention_out_nfm=P("Y", None, "X"),
        query_ma=P("X", "Y"),
        key_ma=P("X", "Y"),
        value_ma=P("X", "Y"),
        attention_out_am=P("Y", "X"),
        distance_mkd=P("X", "Y", None),
        codebook_sum_kcd=P("Y", None, None),
        codebook_count_kc=P("Y", None),
        ffn_in_mf=P("X", "Y"),
        ffn_gate_mf=P("X", "Y"),
        ffn_out_fm=P("Y", "X"),
        router_me=P(None, None),
        router_bias_e=P(None),
        expert_in_emf=P("X", None, "Y"),
        expert_gate_emf=P("X", None, "Y"),
        expert_out_efm=P("X", "Y", None),
        pointer_query_mc=P("X", None),
        pointer_key_mc=P("X", None),
        norm_scale_m=P("Y"),
        norm_scale_=P(),
        norm_bias_m=P("Y"),
        query_scale_d=P(None),
        key_scale_d=P(None),
        query_scale_nd=P("Y", None),
        key_scale_kd=P("Y", None),
        attention_gain_n=P("Y"),
        relative_bias_nr=P("Y", None),
        content_bias_nd=P("Y", None),
        position_bias_nd=P("Y", None),
        query_bias_nd=P("Y", None),
        key_bias_kd=P("Y", None),
        value_bias_kd=P("Y", None),
        attention_out_bias_m=P("Y"),
        ffn_in_bias_f=P("Y"),
        ffn_gate_bias_f=P("Y"),
        ffn_out_bias_m=P("Y"),
    ),
    activations=Specs(
        tokens_bs=P("X", None),
        residual_bsm=P("X", None, "Y"),
        query_bsnd=P("X", None, "Y", None),
        key_bskd=P("X", None, "Y", None),
        value_bskd=P("X", None, "Y", None),
        mixed_bsnd=P("X", None, "Y", None),
        value_bskf=P("X", None, "Y", None),
        gate_bsnf=P("X", None, "Y", None),
        mixed_bsnf=P("X", None, "Y", None),
        scores_brkglt=P("X", None, "Y", None, None, None),
        cache_brkcf=P("X", None, "Y", None, None),
        hidden_bsf=P("X", None, "Y"),
        group_gsm=P("X", None, None),
        combine_gsec=P("X", None, None, None),
        dispatched_gecm=P("X", None, None, None),
        expert_in_egcm=P("X", None, None, None),
        expert_hidden_egcf=P("X", None, None, "Y"),
        expert_out_egcm=P("X", None, None, None),
        returned_gecm=P("X", None, None, None),
        logits_bsv=P("X", None, None),
    ),
)

# For one or few heads with large values (gated attention units): values, gates and hidden units over "model", positions
# of a row over "sequence", the other dimension of matrices over "data".
VQ_VALUES = Layout(
    axes=("data", "sequence", "model"),
    weights=Specs(
        embedding_vm=P(None, "model"),
        unembedding_mv=P("model", None),
        unembedding_bias_v=P(None),
        position_tm=P(None, "model"),
        position_scale_=P(),
        query_mnd=P("data", None, None),
        key_mkd=P("data", None, None),
        value_mkd=P("data", None, "model"),
        value_mkf=P("data", None, "model"),
        gate_mnf=P("data", None, "model"),
        attention_out_ndm=P(None, "model", "data"),
        attention_out_nfm=P(None, "model", "data"),
        query_ma=P("data", None),
        key_ma=P("data", None),
        value_ma=P("data", "model"),
        attention_out_am=P("model", "data"),
        distance_mkd=P("data", None, None),
        codebook_sum_kcd=P(None, None, None),
        codebook_count_kc=P(None, None),
        ffn_in_mf=P("data", "model"),
        ffn_gate_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
        router_me=P(None, None),
        router_bias_e=P(None),
        expert_in_emf=P("data", None, "model"),
        expert_gate_emf=P("data", None, "model"),
        expert_out_efm=P("data", "model", None),
        pointer_query_mc=P("data", None),
        pointer_key_mc=P("data", None),
        norm_scale_m=P(None),
        norm_scale_=P(),
        norm_bias_m=P(None),
        query_scale_d=P(None),
        key_scale_d=P(None),
        query_scale_nd=P(None, None),
        key_scale_kd=P(None, None),
        attention_gain_n=P(None),
        relative_bias_nr=P(None, None),
        content_bias_nd=P(None, None),
        position_bias_nd=P(None, None),
        query_bias_nd=P(None, None),
        key_bias_kd=P(None, None),
        value_bias_kd=P(None, "model"),
        attention_out_bias_m=P(None),
        ffn_in_bias_f=P("model"),
        ffn_gate_bias_f=P("model"),
        ffn_out_bias_m=P(None),
    ),
    activations=Specs(
        tokens_bs=P("data", "sequence"),
        residual_bsm=P("data", "sequence", None),
        value_bskd=P("data", "sequence", None, "model"),
        value_bskf=P("data", "sequence", None, "model"),
        gate_bsnf=P("data", "sequence", None, "model"),
        mixed_bsnd=P("data", "sequence", None, "model"),
        mixed_bsnf=P("data", "sequence", None, "model"),
        cache_brkcf=P("data", "sequence", None, None, "model"),
        hidden_bsf=P("data", "sequence", "model"),
        group_gsm=P("data", None, None),
        combine_gsec=P("data", None, None, None),
        dispatched_gecm=P("data", None, None, None),
        expert_in_egcm=P("data", None, None, None),
        expert_hidden_egcf=P("data", None, None, "model"),
        expert_out_egcm=P("data", None, None, None),
        returned_gecm=P("data", None, None, None),
        logits_bsv=P("data", "sequence", None),
    ),
)

# The same mesh for several heads: queries, keys, values and scores over "model" by heads.
VQ_HEADS = VQ_VALUES.but(
    weights=Specs(
        query_mnd=P("data", "model", None),
        key_mkd=P("data", "model", None),
        value_mkd=P("data", "model", None),
        value_mkf=P("data", "model", None),
        gate_mnf=P("data", "model", None),
        attention_out_ndm=P("model", None, "data"),
        attention_out_nfm=P("model", None, "data"),
        query_ma=P("data", "model"),
        key_ma=P("data", "model"),
        distance_mkd=P("data", "model", None),
        codebook_sum_kcd=P("model", None, None),
        codebook_count_kc=P("model", None),
        query_scale_nd=P("model", None),
        key_scale_kd=P("model", None),
        attention_gain_n=P("model"),
        relative_bias_nr=P("model", None),
        content_bias_nd=P("model", None),
        position_bias_nd=P("model", None),
        query_bias_nd=P("model", None),
        key_bias_kd=P("model", None),
        value_bias_kd=P("model", None),
    ),
    activations=Specs(
        query_bsnd=P("data", "sequence", "model", None),
        key_bskd=P("data", "sequence", "model", None),
        value_bskd=P("data", "sequence", "model", None),
        value_bskf=P("data", "sequence", "model", None),
        gate_bsnf=P("data", "sequence", "model", None),
        mixed_bsnd=P("data", "sequence", "model", None),
        mixed_bsnf=P("data", "sequence", "model", None),
        scores_brkglt=P("data", "sequence", "model", None, None, None),
        cache_brkcf=P("data", "sequence", "model", None, None),
    ),
)


def _without_axis(table: Specs, axis: str) -> Specs:
    return Specs(**{row: without(spec, axis) for row, spec in table.items()})


# Weights split over "model" alone and equal on all devices of "data", unless a ZeRO stage splits them.
TENSOR_PARALLEL = dataclasses.replace(FULLY_SHARDED, weights=_without_axis(FULLY_SHARDED.weights, "data"))

# Weights equal on all devices; the batch over "data" (data parallelism).
REPLICATED = Layout(
    axes=("data",),
    weights=_without_axis(TENSOR_PARALLEL.weights, "model"),
    activations=_without_axis(FULLY_SHARDED.activations, "model"),
)

LAYOUTS = {
    "fully_sharded": FULLY_SHARDED,
    "tensor_parallel": TENSOR_PARALLEL,
    "replicated": REPLICATED,
    "expert_axis": EXPERT_AXIS,
    "gshard_2d": GSHARD_2D,
    "gshard_experts": GSHARD_EXPERTS,
    "mup_2d": MUP_2D,
    "vq_values": VQ_VALUES,
    "vq_heads": VQ_HEADS,
}


def layout_of(experiment: Any) -> Layout:
    """Returns the layout of an experiment, split over SEQUENCE_AXIS and STACK, with the experiment's own rows.

    Raises:
      UsageError: the layout is unknown, or the mesh lacks an axis.
    """
    name, mesh_axes = experiment.LAYOUT, experiment.MESH_AXES
    if name not in LAYOUTS:
        raise UsageError(f"LAYOUT = {name} is unknown. {did_you_mean(name, LAYOUTS)}")
    layout = LAYOUTS[name]
    if missing := [axis for axis in layout.axes if axis not in mesh_axes]:
        raise UsageError(
            f"LAYOUT = {name} splits arrays over mesh axis '{missing[0]}' (got MESH_AXES = {mesh_axes}). Set "
            f"MESH_AXES={','.join(layout.axes)} and a DEVICE_MESH_SHAPE of as many sizes."
        )
    if (axis := experiment.SEQUENCE_AXIS) is not None:
        wanted = (mesh_axes[0], axis, *mesh_axes[1:])
        _require_axis(f"SEQUENCE_AXIS = {axis}", axis, mesh_axes, wanted)
        layout = layout.over_positions(axis, with_weights=experiment.positions_split_weights)
    if len(experiment.STACK) != 1 or len(axes_of(experiment.STACK[0])) > 1:
        raise UsageError(
            f"STACK must have one entry with at most one axis, for the layers (got {show_spec(experiment.STACK)}). "
            f'Write P("stage").'
        )
    if (axis := experiment.stage_axis) is not None:
        _require_axis(f"STACK = {show_spec(experiment.STACK)}", axis, mesh_axes, (axis, *mesh_axes))
        layout = layout.over_stages(axis)
    return layout.but(weights=experiment.WEIGHTS, activations=experiment.ACTIVATIONS)


def _require_axis(knob: str, axis: str, mesh_axes: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    if axis not in mesh_axes:
        raise UsageError(
            f"{knob}: '{axis}' is not an axis of the mesh (got MESH_AXES = {mesh_axes}). Set "
            f"MESH_AXES={','.join(wanted)} and a DEVICE_MESH_SHAPE of as many sizes."
        )
