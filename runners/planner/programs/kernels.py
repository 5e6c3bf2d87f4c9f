"""Kernels of a compiled program: attention, matrix products by element type, arrays of scores, copies."""

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterator

from runners.planner.programs.hlo_text import Instruction, array_bytes, arrays, attribute, operands, parse, walk
from runners.planner.programs.metadata import layer, op_name

CUDNN = "cuDNN attention"
SPLASH = "Splash attention"
BLOCKWISE = "blockwise products"
SOFTMAX = "products and a Triton softmax"
PRODUCTS = "products, scores as arrays"
_DIMENSIONS = ("contracting", "batch")
_MOVES = {"copy", "transpose"}
_FREE = {"parameter", "bitcast", "tuple", "get-tuple-element", "constant"}  # instructions without work
# Their results are those of other instructions.
_CONTAINERS = _FREE | {"while", "conditional", "call", "async-done", "async-update", "copy-done"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """An instruction of a program that runs on its own or, for products, as a part of a kernel."""

    layer: str
    times: int  # executions per step
    bytes: int  # of its result
    flops: int = 0  # of a product
    dtype: str = ""  # of a product's operands, the wider one
    dims: tuple[int, ...] = ()  # of its result
    is_batched: bool = False  # a product of stacks of matrices


class Kernels:
    """The work of a compiled program.

    Args:
      text: `compiled.as_text()`.
      layers: paths of all layers.
    """

    def __init__(self, text: str, layers: Collection[str]):
        self._computations, self._entry = parse(text)
        self._layers = layers
        bodies = self._computations.values()
        self._fused = {attribute(i.rest, "calls") for body in bodies for i in body if i.opcode == "fusion"}

    def _walk(self) -> Iterator[tuple[int, str, Instruction]]:
        """Yields executions per step, the computation and the instruction."""
        for loops, name, instruction in walk(self._computations, self._entry, ()):
            yield math.prod(loops), name, instruction

    def _kernels(self) -> Iterator[tuple[int, Instruction]]:
        """Yields instructions that run on their own, with their executions."""
        for times, name, instruction in self._walk():
            if name not in self._fused and instruction.opcode not in _CONTAINERS:
                yield times, instruction

    @functools.cached_property
    def products(self) -> list[Work]:
        """All matrix products, with their FLOPs per execution."""
        types = {name: {i.name: i.type for i in body} for name, body in self._computations.items()}
        found = []
        for times, name, instruction in self._walk():
            contracting, batch = _product(instruction)
            if not contracting:
                continue
            sides = [arrays(types[name].get(operand, ""))[:1] for operand in operands(instruction)[:2]]
            out = arrays(instruction.type)[0]
            if not all(sides) or len(sides) < 2:
                continue
            (left,), (right,) = sides
            work = 2 * math.prod(out[1]) * math.prod(left[1][one] for one in contracting)
            place = layer(op_name(instruction), self._layers)
            dtype = max(left, right, key=lambda side: array_bytes((side[0], ())))[0]
            found.append(
                Work(
                    layer=place,
                    times=times,
                    bytes=array_bytes(out),
                    flops=work,
                    dtype=dtype,
                    dims=out[1],
                    is_batched=bool(batch),
                )
            )
        return found

    def scores(self, queries: int, keys: int, others: Collection[int]) -> list[Work]:
        """Returns kernels whose result is an array of (queries x keys), in layers with a product of that shape.

        Args:
          queries: positions of queries on a device; those of several heads may be one dimension.
          keys: positions of keys on a device.
          others: sizes of other dimensions. If the number of keys is among them, only arrays of four or more dimensions
            count, with the queries of one head.
        """
        is_ambiguous = keys in others
        is_pair = lambda dims: _is_pair(dims, queries, keys, exactly=is_ambiguous)
        attending = {one.layer for one in self.products if one.is_batched and is_pair(one.dims)}
        found = []
        for times, instruction in self._kernels():
            place = layer(op_name(instruction), self._layers)
            for dtype, dims in arrays(instruction.type) if place in attending else ():
                if not is_pair(dims) or (is_ambiguous and len(dims) == 3):
                    continue
                size = array_bytes((dtype, dims))
                if "dynamic_update_slice" in op_name(instruction):  # of a stack over layers, one layer is written
                    size //= dims[0]
                found.append(Work(layer=place, times=times, bytes=size, dtype=dtype, dims=dims))
        return found

    def copies(self) -> list[Work]:
        """Returns copies and transposes, and kernels of nothing else."""
        found = []
        for times, instruction in self._kernels():
            if instruction.opcode == "fusion":
                body = self._computations.get(attribute(instruction.rest, "calls"), [])
                opcodes = {i.opcode for i in body} - _FREE
                is_copy = bool(opcodes) and opcodes <= _MOVES
            else:
                is_copy = instruction.opcode in _MOVES
            if is_copy:
                size = sum(map(array_bytes, arrays(instruction.type)))
                found.append(Work(layer=layer(op_name(instruction), self._layers), times=times, bytes=size))
        return found

    def attention(self, scores: Collection[Work]) -> dict[str, str]:
        """Returns the kernel that computes attention, by layer; `scores`: the arrays of scores in the program."""
        found = dict.fromkeys((one.layer for one in scores), PRODUCTS)
        for _, instruction in self._kernels():
            place = layer(op_name(instruction), self._layers)
            called = attribute_text(instruction, "custom_call_target")
            if place and "fmha" in called:
                found[place] = CUDNN
            elif place and called == "tpu_custom_call" and instruction.name.startswith("splash"):
                found[place] = SPLASH
            elif place in found and "softmax" in instruction.name and found[place] == PRODUCTS:
                found[place] = SOFTMAX
        return found


def _product(instruction: Instruction) -> tuple[list[int], list[int]]:
    """Returns the contracted and the batch dimensions of a product's left operand; of other instructions none.

    In a program compiled with an attached GPU, products are also calls of cuBLAS.
    """
    if instruction.opcode == "dot":
        parts = [attribute(instruction.rest, f"lhs_{name}_dims") for name in _DIMENSIONS]
    elif attribute_text(instruction, "custom_call_target").startswith("__cublas$"):
        found = [re.search(rf'"lhs_{name}_dimensions":\[([^]]*)\]', instruction.rest) for name in _DIMENSIONS]
        parts = [one[1] if one else "" for one in found]
    else:
        return [], []
    contracting, batch = ([int(digits) for digits in re.findall(r"\d+", part)] for part in parts)
    return contracting, batch


def _is_pair(dims: tuple[int, ...], queries: int, keys: int, *, exactly: bool) -> bool:
    """Returns whether the last two of at least three dimensions are (queries, keys) in either order."""
    if len(dims) < 3:
        return False
    a, b = dims[-2:]
    return any(x == keys and (x == y == queries if exactly else y % queries == 0) for x, y in ((a, b), (b, a)))


def attribute_text(instruction: Instruction, name: str) -> str:
    """Returns an attribute that is a quoted text; empty if the instruction has none."""
    found = re.search(rf'\b{name}="([^"]*)"', instruction.rest)
    return found[1] if found else ""
