"""What would be slow in a program that the GPU's compiler made: sentences with the layer, the amount and the knob."""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from registry.records.quantities import amount, size
from runners.planner.programs.hlo import Collective, collectives
from runners.planner.programs.kernels import CUDNN, Kernels, Work
from runners.planner.programs.metadata import layer, layers_of

_MIN_SHARE = 0.01  # of the FLOPs: fewer in float32 are not a finding
_MIN_COPIED = 0.1  # of the peak: fewer bytes copied per step are not a finding
_ZERO_GATHERS = 3  # the stage of ZeRO that gathers weights in each layer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that costs time or memory."""

    kind: str  # "scores", "float32", "gathers", "hosts" or "copies"
    text: str  # a sentence
    layer: str  # with the largest part; empty if unknown
    bytes: int  # per device and step
    count: int  # executions per step
    knob: str  # "ATTENTION_DROPOUT=0": a knob that avoids it, or its name; empty if there is none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A program and the experiment that it belongs to."""

    text: str  # `compiled.as_text()`
    experiment: Any
    weights: Mapping[str, Sequence[int]]  # shapes by path in the weight table
    length: int  # positions in a row
    mesh: Mapping[str, int]
    hosts: Sequence[int]  # the host of each device, in the order of the mesh
    peak: int  # bytes per device


def judge(program: Judged) -> dict[str, Any]:
    """Returns `attention_kernels`, by layer, and `findings` of plan.json, the gravest first."""
    layers = layers_of(program.weights)
    kernels = Kernels(program.text, layers)
    others = {dim for path, shape in program.weights.items() if "positions" not in path for dim in shape}
    queries = program.length // program.mesh.get("sequence", 1)
    scores = kernels.scores(queries, program.length, others)
    attention = kernels.attention(scores)
    exchanges = list(collectives(program.text, program.mesh))
    found = [
        *_scores([one for one in scores if attention[one.layer] != CUDNN], program.experiment),
        *_float32(kernels.products(), program.experiment),
        *_gathers(exchanges, layers, program.experiment),
        *_hosts(exchanges, layers, program),
        *_copies(kernels.copies(), program.peak),
    ]
    return {"attention_kernels": attention, "findings": [dataclasses.asdict(one) for one in found]}


def _scores(scores: Collection[Work], experiment: Any) -> Iterator[Finding]:
    by_layer: dict[str, list[Work]] = collections.defaultdict(list)
    for one in scores:
        by_layer[one.layer].append(one)
    for place, works in sorted(by_layer.items(), key=lambda item: -_bytes(item[1])):
        reason, knob = attention_obstacle(experiment)
        largest = max(works, key=lambda one: one.bytes)
        shape = f"{largest.dtype}[{','.join(map(str, largest.dims))}]"
        yield Finding(
            kind="scores",
            text=f"{place} writes the scores of all queries and keys as arrays, {size(_bytes(works))} per step (the "
            f"largest is {shape}){f', because of {reason}' if reason else ''}.",
            layer=place,
            bytes=_bytes(works),
            count=_count(works),
            knob=knob,
        )


def attention_obstacle(experiment: Any) -> tuple[str, str]:
    """Returns why a GPU does not compute attention by cuDNN, and the knob that allows it; empty if unknown.

    The conditions are those of layers.attention.softmax.Attention.
    """
    get = lambda name, default=None: getattr(experiment, name, default)
    rate = get("ATTENTION_DROPOUT")
    obstacles: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: get("DROPOUT", 0) if rate is None else rate, "dropout on attention", "ATTENTION_DROPOUT=0"),
        (lambda: get("DTYPE") == "float32", "float32 activations", "DTYPE=bfloat16"),
        (lambda: _is_set(get("ATTENTION_WINDOW")), "a window", "ATTENTION_WINDOW=None"),
        (lambda: get("ATTENTION_SOFTCAP"), "a cap on the scores", "ATTENTION_SOFTCAP=None"),
        (lambda: get("EXTRA_LOGIT") is not None, "an extra logit", "EXTRA_LOGIT=None"),
        (lambda: get("SCORE_FUNCTION", "softmax") != "softmax", "the score function", "SCORE_FUNCTION=softmax"),
        (lambda: get("POSITIONS") in ("relative", "alibi"), "biases of positions", "POSITIONS=rotary"),
    ]
    return next(((reason, knob) for is_met, reason, knob in obstacles if is_met()), ("", ""))


def _is_set(value: Any) -> bool:
    """Returns whether a knob with one value, or one per layer, is set."""
    return any(one is not None for one in value) if isinstance(value, tuple | list) else value is not None


def _float32(products: Collection[Work], experiment: Any) -> Iterator[Finding]:
    wide = [one for one in products if one.dtype == "f32"]
    total, slow = (sum(one.flops * one.times for one in works) for works in (products, wide))
    if not total or slow < _MIN_SHARE * total:
        return
    place = _largest(wide, lambda one: one.flops * one.times)
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
    by_axis: dict[str, list[Collective]] = collections.defaultdict(list)
    for one in exchanges:
        if one.kind == "all-gather" and math.prod(one.loops) > 1:
            by_axis[one.axis].append(one)
    for axis, inside in sorted(by_axis.items(), key=lambda item: -_sent(item[1])):
        place, count = _most_sent(inside, layers), sum(one.times for one in inside)
        yield Finding(
            kind="gathers",
            text=f"{count:,} all-gathers inside loops send {size(_sent(inside))} along {axis} per step"
            f"{f', most in {place}' if place else ''}.",
            layer=place,
            bytes=_sent(inside),
            count=count,
            knob=_gather_knob(experiment, axis),
        )


def _gather_knob(experiment: Any, axis: str) -> str:
    """Returns the knob that keeps weights complete along a mesh axis, or that places them otherwise."""
    if getattr(experiment, "ZERO_STAGE", None) == _ZERO_GATHERS and axis in (experiment.ZERO_AXIS, "data"):
        return f"ZERO_STAGE={_ZERO_GATHERS - 1}"
    is_split = getattr(experiment, "LAYOUT", "") == "fully_sharded" and axis == "data"
    return "LAYOUT=tensor_parallel" if is_split else "LAYOUT"


def _hosts(exchanges: Collection[Collective], layers: Collection[str], program: Judged) -> Iterator[Finding]:
    by_axis: dict[str, list[Collective]] = collections.defaultdict(list)
    for one in exchanges:
        if crosses_hosts(one.axis, program.mesh, program.hosts):
            by_axis[one.axis].append(one)
    for axis, across in sorted(by_axis.items(), key=lambda item: -_sent(item[1])):
        place = _most_sent(across, layers)
        yield Finding(
            kind="hosts",
            text=f"{sum(one.times for one in across):,} exchanges along {axis} cross hosts and send "
            f"{size(_sent(across))} per step{f', most in {place}' if place else ''}.",
            layer=place,
            bytes=_sent(across),
            count=sum(one.times for one in across),
            knob="DEVICE_MESH_SHAPE",
        )


def crosses_hosts(axis: str, mesh: Mapping[str, int], hosts: Sequence[int]) -> bool:
    """Returns whether devices along mesh axes, joined by "+", are of several hosts.

    Args:
      axis: as in a `Collective`.
      mesh: axis name to size, in the order of the mesh.
      hosts: the host of each device, in the order of the mesh.
    """
    grid = np.array(hosts).reshape(tuple(mesh.values()))
    along = tuple(n for n, name in enumerate(mesh) if name in axis.split("+"))
    return bool((grid.min(axis=along) != grid.max(axis=along)).any())


def _copies(copies: Collection[Work], peak: int) -> Iterator[Finding]:
    if _bytes(copies) < _MIN_COPIED * peak:
        return
    place = _largest(copies, lambda one: one.bytes * one.times)
    text = f"{amount(_count(copies))} copies and transposes write {size(_bytes(copies))} per step"
    yield Finding(
        kind="copies",
        text=f"{text}{f', most in {place}' if place else ''}.",
        layer=place,
        bytes=_bytes(copies),
        count=_count(copies),
        knob="",
    )


def _largest(works: Collection[Work], weigh: Callable[[Work], int]) -> str:
    """Returns the layer with the largest total."""
    totals: collections.Counter[str] = collections.Counter()
    for one in works:
        totals[one.layer] += weigh(one)
    return max(totals, key=totals.__getitem__)


def _most_sent(exchanges: Collection[Collective], layers: Collection[str]) -> str:
    totals: collections.Counter[str] = collections.Counter()
    for one in exchanges:
        totals[layer(one.operation, layers)] += one.times * one.sent_bytes
    return max(totals, key=totals.__getitem__)


def _sent(exchanges: Collection[Collective]) -> int:
    return sum(one.times * one.sent_bytes for one in exchanges)


def _bytes(works: Collection[Work]) -> int:
    return sum(one.bytes * one.times for one in works)


def _count(works: Collection[Work]) -> int:
    return sum(one.times for one in works)
