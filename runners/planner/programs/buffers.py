"""Buffers of a compiled program over its schedule, from the compiler's own assignment of memory."""

import collections
import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# The fields that are read of the messages in XLA's xla/service/hlo.proto: number and type, "*" if repeated.
_MESSAGES = {
    "Location": {"shape_index": (3, "*int64")},
    "LogicalBuffer": {"id": (1, "int64"), "size": (2, "int64"), "defined_at": (3, "Location")},
    "Assigned": {"logical_buffer_id": (1, "int64")},
    "Allocation": {
        **{
            "size": (2, "int64"),
            "is_thread_local": (3, "bool"),
            "is_parameter": (5, "bool"),
            "parameter": (6, "int64"),
        },
        **{"assigned": (9, "*Assigned"), "is_constant": (12, "bool")},
    },
    "Event": {
        **{"kind": (1, "int64"), "buffer_id": (2, "int64"), "instruction_name": (4, "string")},
        "share_with_canonical_id": (5, "int64"),
    },
    "Trace": {"events": (1, "*Event")},
    "Assignment": {"buffers": (1, "*LogicalBuffer"), "allocations": (3, "*Allocation"), "traces": (4, "*Trace")},
    "Module": {"assignment": (3, "Assignment")},
}
_NEVER = 1e9  # seconds
_FREE, _SHARE = 1, 2  # kinds of events; 0 is an allocation


@dataclasses.dataclass(frozen=True)
class Definition:
    """A value in a buffer: the instruction that defines it, and its place in the instruction's result."""

    instruction: str
    index: tuple[int, ...] = ()  # of a tuple


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixed:
    """Memory that is allocated for all of the program."""

    bytes: int
    parameter: int | None  # number of the program's parameter
    is_constant: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Temporary:
    """Memory that is allocated for a part of the program."""

    bytes: int
    begin: int  # number of the event that allocates it
    end: int  # number of the event that frees it
    definitions: tuple[Definition, ...]  # values that share it, one after another


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers:
    """The memory of a program on one device."""

    fixed: Sequence[Fixed]
    temporaries: Sequence[Temporary]
    events: int  # length of the schedule
    heap: int  # bytes of the arena of temporaries, gaps between them included


def compile_with_buffers(lowered: Any) -> tuple[Any, Buffers | None]:
    """Compiles a jax.stages.Lowered; returns the jax.stages.Compiled and its buffers, None if they are not reported.

    The compiler writes its assignment of memory to a temporary folder, because that of `memory_analysis()` is empty for
    GPUs and TPUs (jaxlib 0.10.2). JAX's compilation cache would skip the compiler, so it is not used: neither to find
    the program nor to keep it.
    """
    least = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        # The name of the folder makes the cache's key unique; no emitter has that name.
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True, "xla_dump_emitter_re": folder}
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _NEVER)
        try:
            return lowered.compile(compiler_options=options), _of_folder(Path(folder))
        finally:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


def _of_folder(folder: Path) -> Buffers | None:
    files = sorted(folder.glob("*after_optimizations.hlo.pb"), key=lambda file: file.stat().st_size)
    if not files:
        return None
    module = _message("Module").FromString(files[-1].read_bytes())
    return _buffers(module.assignment)


@functools.cache
def _message(name: str) -> Any:
    """Returns the class of a message in _MESSAGES."""
    file = descriptor_pb2.FileDescriptorProto(name="buffers.proto", package="buffers", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            label = "LABEL_REPEATED" if kind.startswith("*") else "LABEL_OPTIONAL"
            added = described.field.add(name=field, number=number)
            added.label = descriptor_pb2.FieldDescriptorProto.Label.Value(label)
            kind = kind.lstrip("*")
            if kind in _MESSAGES:
                added.type_name = f".buffers.{kind}"
            type_name = "TYPE_MESSAGE" if kind in _MESSAGES else f"TYPE_{kind.upper()}"
            added.type = descriptor_pb2.FieldDescriptorProto.Type.Value(type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"buffers.{name}"))


def _buffers(assignment: Any) -> Buffers | None:
    if not assignment.allocations:
        return None
    traced = {event.buffer_id for trace in assignment.traces for event in trace.events}
    is_heap = lambda allocation: any(one.logical_buffer_id in traced for one in allocation.assigned)
    shown = [one for one in assignment.allocations if not one.is_thread_local]
    fixed = [
        Fixed(bytes=one.size, parameter=one.parameter if one.is_parameter else None, is_constant=one.is_constant)
        for one in shown
        if one.is_parameter or not is_heap(one)
    ]
    temporaries: list[Temporary] = []
    start = 0
    for trace in assignment.traces:
        temporaries += _temporaries(trace.events, {one.id: one for one in assignment.buffers}, start)
        start += len(trace.events)
    heap = sum(one.size for one in shown if not one.is_parameter and is_heap(one))
    return Buffers(fixed=fixed, temporaries=temporaries, events=start, heap=heap)


def _temporaries(events: Sequence[Any], buffers: dict[int, Any], start: int) -> list[Temporary]:
    """Returns the buffers of the events; values that share one keep it until the last of them is freed."""
    first: dict[int, int] = {}  # the value that allocated a value's buffer
    begun: dict[int, int] = {}
    users: collections.Counter[int] = collections.Counter()
    definitions: dict[int, list[Definition]] = collections.defaultdict(list)
    found: list[Temporary] = []
    for number, event in enumerate(events, start):
        value = event.buffer_id
        if event.kind != _FREE:
            owner = first[event.share_with_canonical_id] if event.kind == _SHARE else value
            first[value] = owner
            users[owner] += 1
            begun.setdefault(owner, number)
            index = tuple(buffers[value].defined_at.shape_index)
            definitions[owner].append(Definition(event.instruction_name, index))
            continue
        owner = first[value]
        users[owner] -= 1
        if not users[owner]:
            size, values = buffers[owner].size, tuple(definitions.pop(owner))
            found.append(Temporary(bytes=size, begin=begun.pop(owner), end=number, definitions=values))
    return found
