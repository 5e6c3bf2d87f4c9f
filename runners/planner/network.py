"""The network between slices of TPUs or hosts of GPUs: bytes and times of exchanges across it, better placements."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from registry.records.quantities import size
from runners.machine.chips import Chip
from runners.mesh import factorizations

Plan = dict[str, Any]
GAIN = 0.9  # a placement is better if it sends less than this share across


def sent_across(kind: str, payload: int, devices: int, fewest: int) -> int:
    """Returns the bytes that a device sends across in a collective; a part of those that it sends in a ring.

    Each slice or host exchanges what it has inside first, then its devices send equal parts across at the same time:
    the least that has to cross, at the slice or host with the fewest devices of the group.

    Args:
      kind: the collective.
      payload: bytes of its result on each device.
      devices: devices of the group.
      fewest: of these, the devices in one slice or host; all of them if nothing crosses.
    """
    others = devices - fewest
    if kind == "collective-permute":
        return payload if others else 0
    if kind == "reduce-scatter":
        return payload * others // fewest
    if kind == "all-to-all":  # nothing can be combined or copied inside
        return payload * others // devices
    return (2 if kind == "all-reduce" else 1) * payload * others // (devices * fewest)


def bounds(collectives: Sequence[Mapping[str, Any]], chip: Chip) -> dict[str, float]:
    """Returns the time of the exchanges of each mesh axis, inside (links) and across (network).

    Exchanges across have none if the chip's network bandwidth is unknown.
    """
    inside: dict[str, float] = {}
    across: dict[str, float] = {}
    for one in collectives:
        inside[one["axis"]] = inside.get(one["axis"], 0) + one["bytes"] - one["network_bytes"]
        across[one["axis"]] = across.get(one["axis"], 0) + one["network_bytes"]
    found = {f"links_{axis}_seconds": sent / chip.link_bandwidth for axis, sent in inside.items() if sent}
    if chip.network_bandwidth is not None:
        found |= {f"network_{axis}_seconds": sent / chip.network_bandwidth for axis, sent in across.items() if sent}
    return found


def shared_seconds(roofline: Mapping[str, float]) -> float:
    """Returns the time of all exchanges across; those of all mesh axes share a device's part of the network."""
    return sum(seconds for name, seconds in roofline.items() if name.startswith("network_"))


def network_bytes(content: Mapping[str, Any]) -> int:
    """Returns the bytes that a device sends across per step; 0 for plans of earlier versions."""
    return sum(one.get("network_bytes", 0) for one in content["collectives"])


def rows(content: Plan) -> list[tuple[str, str]]:
    """Returns the figures of exchanges across: bytes and time; none if nothing crosses."""
    if not (sent := network_bytes(content)):
        return []
    across = content["across"]
    least = "about" if content.get("roofline_is_estimate") else "at least"
    seconds = shared_seconds(content.get("roofline", {}))
    time = f"{least} {seconds:.3g} s" if seconds else "time unknown: the network bandwidth is not published"
    time = time if content["chip"] else "time unknown without a chip"
    return [(f"sent across {across['count']} {across['of']}", f"{size(sent)} per device, {time}")]


def warning(content: Plan) -> str | None:
    """Returns a sentence if the mesh axis that sends most across slices or hosts need not; None otherwise."""
    totals: dict[str, list[int]] = {}
    for one in content["collectives"]:
        total = totals.setdefault(one["axis"], [0, 0])
        total[0] += one["bytes"]
        total[1] += one.get("network_bytes", 0)
    crossing = {axis: total for axis, total in totals.items() if axis in content["mesh"] and total[1]}
    axis = max(crossing, key=lambda name: crossing[name][1], default=None)
    if axis is None:
        return None
    sent, across = crossing[axis]
    is_largest = sent == max(total[0] for total in totals.values())
    better = _better_placement(content) or (_mesh_inside(content, axis) if is_largest else None)
    if better is None:
        return None
    return (
        f"Mesh axis '{axis}' spans {content['across']['of']}: {size(across)} of the {size(sent)} that it sends per "
        f"device and step cross the network. {better}"
    )


def _better_placement(content: Plan) -> str | None:
    """Returns the placement of the mesh that sends least across; None if it saves little by the same estimate."""
    count, current = content["across"]["count"], tuple(content["across"]["mesh"].values())
    placements = {factors: _estimate(content, factors) for factors in factorizations(count, content["mesh"].values())}
    best = min(placements, key=lambda factors: placements[factors], default=None)
    if best is None or placements[best] >= GAIN * placements.get(current, network_bytes(content)):
        return None
    return f"--set=DCN_MESH_SHAPE={_text(best)} sends about {size(placements[best])} across instead."


def _mesh_inside(content: Plan, axis: str) -> str | None:
    """Returns a mesh whose axis is inside slices or hosts; None if there is none, or it is the first axis."""
    mesh, count = content["mesh"], content["across"]["count"]
    first, devices = next(iter(mesh)), math.prod(mesh.values())
    inside = math.gcd(mesh[axis], devices // count)
    if axis == first or inside == mesh[axis] or mesh[first] * mesh[axis] // inside % count:
        return None
    shape = {**mesh, axis: inside, first: mesh[first] * mesh[axis] // inside}
    factors = [count if name == first else 1 for name in mesh]
    return f"--set=DEVICE_MESH_SHAPE={_text(shape.values())} --set=DCN_MESH_SHAPE={_text(factors)} keeps it inside."


def _estimate(content: Plan, factors: Sequence[int]) -> int:
    """Returns about how many bytes a device would send across with these factors of the mesh's sizes."""
    found = 0.0
    for one in content["collectives"]:
        axes = one["axis"].split("+")
        places = [(n, h) for (name, n), h in zip(content["mesh"].items(), factors, strict=True) if name in axes]
        devices, granules = (math.prod(sizes) for sizes in zip(*places, strict=True)) if places else (1, 1)
        if granules > 1:
            ring = one["bytes"] if one["kind"] == "collective-permute" else one["bytes"] / (devices - 1)
            share = {"collective-permute": 1, "all-to-all": devices - devices // granules}
            found += ring * share.get(one["kind"], granules - 1)
    return int(found)


def _text(sizes: Any) -> str:
    return ",".join(map(str, sizes))
