"""Strategies of mutations: bytes, JSON trees, texts, and sets of files of which some are mutated."""

import copy
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from testing.fuzz.kind import Files

MOST_EDITS = 4
DEEP = "\ue000deep\ue000"  # in a JSON tree: replaced by nested arrays, which Python's encoder cannot write
DEPTHS = (100, 2_000, 200_000)
HUGE = (2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, math.nan, math.inf, -math.inf)
NAMES = ("../outside", "/tmp/outside-by-fuzz", "a/../../outside", "..", "", ".", "nul\0", "x" * 5000, "C:\\x", "~/x")
SCRIPT = "<script>alert(1)</script>"
TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "\x1b[31m",
    "\ud800",
    "\u202e",
    "\U0001f408",
    f"{SCRIPT}\"'",
    "-1",
    "1e999",
)
CODE = ("__import__('os').system('true')", "{}.__class__", "P(*[0]*9**9)", "lambda: 0", "9**9**9", "f'{1}'")
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    *HUGE,
    *TEXTS,
    *NAMES,
    *CODE,
    [],
    {},
    [[]],
    {"a": 1},
    [1, "a", None],
    DEEP,
)
NUMBERS = [
    n.to_bytes(size, "little")
    for size in (4, 8)
    for n in (0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1)
]


def texts() -> SearchStrategy[str]:
    """Returns odd texts: control characters, half surrogates, markup, paths, code, and any others."""
    return st.sampled_from((*TEXTS, *NAMES, *CODE)) | st.text(max_size=20)


def values() -> SearchStrategy[Any]:
    """Returns values of a JSON tree that are wrong in most places."""
    return st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=20)


@st.composite
def mutated_bytes(draw: Any, valid: bytes) -> bytes:
    """Returns bytes with one to four edits: flipped bits, cuts, insertions, copies, and numbers at their limits."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, MOST_EDITS))):
        place = draw(st.integers(0, len(content)))
        edit = draw(st.sampled_from(("flip", "number", "cut", "remove", "insert", "copy", "swap")))
        size = draw(st.integers(1, 64))
        if edit == "flip" and place < len(content):
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif edit == "number":
            number = draw(st.sampled_from(NUMBERS))
            content[place : place + len(number)] = number
        elif edit == "cut":
            del content[place:]
        elif edit == "remove":
            del content[place : place + size]
        elif edit == "insert":
            content[place:place] = draw(st.binary(min_size=1, max_size=16))
        elif edit == "copy":
            content[place:place] = content[place : place + size] * draw(st.sampled_from((1, 3, 1000)))
        elif edit == "swap":
            other = draw(st.integers(0, len(content)))
            content[place : place + size], content[other : other + size] = (
                content[other : other + size],
                content[place : place + size],
            )
    return bytes(content)


def to_json(tree: Any, *, ascii_only: bool = True) -> bytes:
    """Returns a tree as JSON, with nested arrays of the depth that a text begins with `DEEP` names."""
    text = json.dumps(tree, ensure_ascii=ascii_only)
    for depth in DEPTHS:
        text = text.replace(json.dumps(f"{DEEP}{depth}", ensure_ascii=ascii_only), "[" * depth + "]" * depth)
    return text.encode(errors="surrogatepass")


@st.composite
def mutated_tree(draw: Any, valid: Any) -> Any:
    """Returns a JSON tree with one to four odd, missing, renamed, or copied values, or of another type."""
    tree = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, MOST_EDITS))):
        holder: Any = None
        key: Any = None
        there = tree
        while isinstance(there, dict | list) and there:
            holder, key = there, draw(st.sampled_from(list(there) if isinstance(there, dict) else range(len(there))))
            there = holder[key]
            if draw(st.integers(0, 3)) == 0:
                break
        value = copy.deepcopy(draw(values()))  # later edits change it in place
        value = f"{DEEP}{draw(st.sampled_from(DEPTHS))}" if value == DEEP else value
        if holder is None:
            return value
        edit = draw(st.sampled_from(("replace", "replace", "replace", "remove", "rename", "copy", "wrap")))
        if edit == "replace":
            holder[key] = value
        elif edit == "remove":
            del holder[key]
        elif edit == "rename" and isinstance(holder, dict):
            holder[draw(texts())] = holder.pop(key)
        elif edit == "copy":
            holder[key] = [there, there] if draw(st.booleans()) else json.loads(json.dumps(tree))
        elif edit == "wrap":
            holder[key] = {str(key): there}
    return tree


@st.composite
def mutated_json(draw: Any, valid: bytes) -> bytes:
    """Returns the JSON of a mutated tree; one in four is also mutated as bytes."""
    content = to_json(draw(mutated_tree(json.loads(valid))), ascii_only=draw(st.booleans()))
    return draw(mutated_bytes(content)) if draw(st.integers(0, 3)) == 0 else content


@st.composite
def mutated_json_lines(draw: Any, valid: bytes) -> bytes:
    """Returns JSON lines of which some are mutated trees; one in four is also mutated as bytes."""
    lines = valid.splitlines()
    for _ in range(draw(st.integers(1, MOST_EDITS))):
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = draw(mutated_json(valid.splitlines()[number]))
    content = b"\n".join(lines)
    return draw(mutated_bytes(content)) if draw(st.integers(0, 3)) == 0 else content


Mutation = Callable[[bytes], SearchStrategy[bytes]]


@st.composite
def mutated_files(draw: Any, valid: Files, by_ending: Mapping[str, Mutation]) -> Files:
    """Returns files of which up to two are mutated, or missing.

    Args:
      draw: of hypothesis.
      valid: the files.
      by_ending: the mutation of files whose names end so; the first that fits. Others are mutated as bytes.
    """
    files = dict(valid)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(list(valid)))
        if draw(st.integers(0, 15)) == 0:
            files.pop(name, None)
            continue
        mutation = next((found for ending, found in by_ending.items() if name.endswith(ending)), mutated_bytes)
        files[name] = draw(mutation(valid[name]))
    return files
