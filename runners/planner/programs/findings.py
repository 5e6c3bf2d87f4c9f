"""What would be slow in a program that the GPU's compiler made: sentences with the layer, the amount and the knob."""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from layers.attention.implementations import Decision, description
from layers.specs import axes_of
from registry.records.quantities import size
from runners.planner.programs.hlo import Collective, collectives
from runners.planner.programs.hlo_text import array_text
from runners.planner.programs.kernels import BLOCKWISE, CUDNN, Kernels, Work
from runners.planner.programs.metadata import layer, layers_of

_MIN_SHARE = 0.01  # of the FLOPs: fewer in float32 are not a finding
_MIN_COPIED = 0.1  # of the peak: fewer bytes copied per step are not a finding
_ZERO_GATHERS = 3  # the stage of ZeRO that gathers weights in each layer
_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that costs time or memory."""

    kind: str  # "scores", "kernel", "float32", "gathers", "hosts" or "copies"
    text: str  # sentences, the last names the knob
    layer: str  # with the largest part; empty if unknown
    bytes: int  # per device and step
    count: int  # executions per step
    knob: str  # "ATTENTION_DROPOUT=0": knobs that avoid it, separated by spaces, or a name; empty if there is none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A program and the experiment that it belongs to."""

    text: str  # `compiled.as_text()`
    experiment: Any
    weights: Mapping[str, Sequence[int]]  # shapes by path in the weight table
    length: int  # positions in a row
    attention: Sequence[Decision]  # of its layers
    mesh: Mapping[str, int]
    granules: Sequence[int]  # number of the host of each device, in the order of the mesh
    peak: int  # bytes per device


def judge(program: Judged) -> dict[str, Any]:
    """Returns `kernels` and `findings` of plan.json; amounts are those of one device and step.

    Findings are ordered by kind: scores, kernels of attention, float32 products, all-gathers inside loops, exchanges
    across hosts, copies.
    Scores, products and copies of cuDNN's kernels are unknown.
    """
    layers = layers_of(program.weights)
    kernels = Kernels(program.text, layers)
    others = {dim for path, shape in program.weights.items() if "positions" not in path for dim in shape}
    along = axes_of(program.experiment.layout.activations["tokens_bs"][1])
    queries = program.length // math.prod(program.mesh.get(axis, 1) for axis in along)
    scores = kernels.scores(queries, program.length, others)
    attention = kernels.attention(scores) | _by_blocks(program)
    scores = [one for one in scores if attention[one.layer] not in (CUDNN, BLOCKWISE)]
    products, copies = kernels.products, kernels.copies()
    exchanges = list(collectives(program.text, program.mesh, program.granules))
    found = [
        *_scores(scores, program.attention),
        *_without_kernel(program.attention),
        *_float32(products, program.experiment),
        *_gathers(exchanges, layers, program.experiment),
        *_hosts(exchanges, layers),
        *_copies(copies, program.peak),
    ]
    amounts = {
        "attention": attention,
        "products": [
            {"dtype": dtype, "count": _count(works), "flops": _flops(works)}
            for dtype, works in _grouped(products, lambda one: one.dtype, _flops)
        ],
        "scores": [
            {"layer": place, "array": array, "count": _count(works), "bytes": _bytes(works)}
            for (place, array), works in _grouped(scores, lambda one: (one.layer, _array(one)), _bytes)
        ],
        "copies": {"count": _count(copies), "bytes": _bytes(copies)},
    }
    return {"kernels": amounts, "findings": [_record(one) for one in found]}


def attention_kernels(program: Judged) -> dict[str, Any]:
    """Returns `kernels` of plan.json of a program for TPUs: what computes attention, in layers where that is known."""
    kernels = Kernels(program.text, layers_of(program.weights))
    return {"kernels": {"attention": kernels.attention(()) | _by_blocks(program)}}


def _by_blocks(program: Judged) -> dict[str, str]:
    return {one.layer: BLOCKWISE for one in program.attention if one.implementation == "blockwise"}


def _record(finding: Finding) -> dict[str, Any]:
    record = dataclasses.asdict(finding)
    return record | {"text": f"{finding.text} Knob: {finding.knob}."} if finding.knob else record


def _scores(scores: Collection[Work], attention: Collection[Decision]) -> Iterator[Finding]:
    if not scores:
        return
    by_layer = _grouped(scores, lambda one: one.layer, _bytes)
    place, more = by_layer[0][0], len(by_layer) - 1
    are = f"{place} and {more} other layer{'s' * (more > 1)} write" if more else f"{place} writes"
    largest = _array(max(scores, key=lambda one: one.bytes))
    is_dense = any(one.implementation == "dense" and one.layer in dict(by_layer) for one in attention)
    yield Finding(
        kind="scores",
        text=f"{are} the scores of all queries and keys as arrays, {size(_bytes(scores))} per step (the largest is "
        f"{largest}).",
        layer=place,
        bytes=_bytes(scores),
        count=_count(scores),
        knob="ATTENTION_IMPLEMENTATION=blockwise" if is_dense else "",
    )


def _without_kernel(attention: Collection[Decision]) -> Iterator[Finding]:
    """Yields a finding for each set of reasons why layers have no cuDNN attention."""
    without = [one for one in dict.fromkeys(attention) if one.without_kernel]
    for obstacles, ones in _grouped(without, lambda one: one.without_kernel, len):
        reasons = " and ".join(reason for reason, _ in obstacles)
        yield Finding(
            kind="kernel",
            text=f"Attention is {description(ones)}, not cuDNN's kernel, because of {reasons}.",
            layer=ones[0].layer,
            bytes=0,
            count=len(ones),
            knob=" ".join(knob for _, knob in obstacles if knob),
        )


def _float32(products: Collection[Work], experiment: Any) -> Iterator[Finding]:
    wide = [one for one in products if one.dtype == "f32"]
    total, slow = _flops(products), _flops(wide)
    if not total or slow < _MIN_SHARE * total:
        return
    place = _grouped(wide, lambda one: one.layer, _flops)[0][0]
    are = f"{_count(wide):,} of {_count(products):,} matrix products per step are in float32"
    yield Finding(
        kind="float32",
        text=f"{are}, {slow / total:.0%} of the FLOPs{f', most in {place}' if place else ''}.",
        layer=place,
        bytes=_bytes(wide),
        count=_count(wide),
        knob="DTYPE=bfloat16" if getattr(experiment, "DTYPE", "") == "float32" else "",
    )


def _gathers(exchanges: Collection[Collective], layers: Collection[str], experiment: Any) -> Iterator[Finding]:
    inside = [one for one in exchanges if one.kind == "all-gather" and math.prod(one.loops) > 1]
    text = "{count:,} all-gathers inside loops send {sent} along {axis} per step"
    yield from _by_axis("gathers", inside, layers, _sent, text, lambda axis: _gather_knob(experiment, axis))


def _gather_knob(experiment: Any, axis: str) -> str:
    """Returns the knob that keeps weights complete along a mesh axis, or that places them otherwise."""
    if getattr(experiment, "ZERO_STAGE", None) == _ZERO_GATHERS and axis in (experiment.ZERO_AXIS, "data"):
        return f"ZERO_STAGE={_ZERO_GATHERS - 1}"
    is_split = getattr(experiment, "LAYOUT", "") == "fully_sharded" and axis == "data"
    return "LAYOUT=tensor_parallel" if is_split else "LAYOUT"


def _hosts(exchanges: Collection[Collective], layers: Collection[str]) -> Iterator[Finding]:
    across = [one for one in exchanges if one.network_bytes]
    sent = lambda ones: sum(one.times * one.network_bytes for one in ones)
    text = "{count:,} exchanges along {axis} send {sent} across hosts per step"
    yield from _by_axis("hosts", across, layers, sent, text, lambda axis: "DEVICE_MESH_SHAPE")


def _by_axis(
    kind: str,
    exchanges: Collection[Collective],
    layers: Collection[str],
    weigh: Callable[[Collection[Collective]], int],
    text: str,
    knob: Callable[[str], str],
) -> Iterator[Finding]:
    """Yields a finding for each mesh axis, the largest first; `text` has places for count, bytes sent and axis."""
    for axis, ones in _grouped(exchanges, lambda one: one.axis, weigh):
        place = _grouped(ones, lambda one: layer(one.operation, layers), _sent)[0][0]
        count, sent = sum(one.times for one in ones), weigh(ones)
        yield Finding(
            kind=kind,
            text=f"{text.format(count=count, sent=size(sent), axis=axis)}{f', most in {place}' if place else ''}.",
            layer=place,
            bytes=sent,
            count=count,
            knob=knob(axis),
        )


def _copies(copies: Collection[Work], peak: int) -> Iterator[Finding]:
    if _bytes(copies) < _MIN_COPIED * peak:
        return
    place = _grouped(copies, lambda one: one.layer, _bytes)[0][0]
    text = f"{_count(copies):,} copies and transposes write {size(_bytes(copies))} per step"
    yield Finding(
        kind="copies",
        text=f"{text}{f', most in {place}' if place else ''}.",
        layer=place,
        bytes=_bytes(copies),
        count=_count(copies),
        knob="",
    )


def _grouped(
    items: Collection[_Item], key: Callable[[_Item], _Key], weigh: Callable[[Collection[_Item]], int]
) -> list[tuple[_Key, list[_Item]]]:
    """Returns the items by a key, the group of the largest weight first."""
    groups: dict[_Key, list[_Item]] = collections.defaultdict(list)
    for one in items:
        groups[key(one)].append(one)
    return sorted(groups.items(), key=lambda item: -weigh(item[1]))


def _array(work: Work) -> str:
    return array_text((work.dtype, work.dims))


def _sent(exchanges: Collection[Collective]) -> int:
    return sum(one.times * one.sent_bytes for one in exchanges)


def _flops(works: Collection[Work]) -> int:
    return sum(one.flops * one.times for one in works)


def _bytes(works: Collection[Work]) -> int:
    return sum(one.bytes * one.times for one in works)


def _count(works: Collection[Work]) -> int:
    return sum(one.times for one in works)
