"""Attention by blocks and by the platform's kernel, compared with dense attention: time, memory and results.

    python -m benchmarks.one_layer.attention

One layer whose projections are negligible (from 8 channels). An update is its forward and backward pass; a prompt is
read into a cache. Turns alternate between implementations. "off" is the largest difference from the results of dense
attention, in parts of the largest result; dropout draws other numbers. JAX_PLATFORMS is cpu by default.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta

from benchmarks.tables import OUT_OF_MEMORY, alternate, flags, machine, show
from layers.attention.implementations import KERNELS
from layers.attention.softmax import Attention
from layers.specs import Specs
from layers.weights.initializers import FanIn
from registry.templates.decoder import DecoderLm

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout_rate": 0.1},
    "window of 512": {"window": 512},
    "packed rows": {"max_segments": 4},
}
CHANNELS = 8


def layer(options: argparse.Namespace, case: str, implementation: Any, block: int = 512) -> Attention:
    """Returns the layer of a case."""
    init: Any = {"initializer": FanIn(), "out_initializer": FanIn(), "specs": DecoderLm().specs.of(Attention)}
    heads = {"num_heads": options.heads, "num_kv_heads": options.kv_heads or options.heads}
    sizes: Any = {**heads, "model_dim": CHANNELS, "head_dim": options.head_dim, "dtype": options.dtype}
    how = {"implementation": implementation, "block_size": block}
    return Attention(**init, **sizes, **how, **CASES[case], activations=Specs())


def compiled(
    options: argparse.Namespace, case: str, length: int, module: Attention, *, is_prompt: bool
) -> tuple[Callable[[], Any], int]:
    """Returns a function that runs the layer once, and the bytes of its temporary memory."""
    rows = max(1, options.tokens // length)
    x = jax.random.normal(jax.random.key(0), (rows, length, CHANNELS), options.dtype)
    ids = jnp.broadcast_to(1 + jnp.arange(length) // (length // 4), (rows, length)) if "packed" in case else None
    variables = meta.unbox(module.init(jax.random.key(1), x[:, :1]))
    rngs = {"dropout": jax.random.key(2)}

    def update(variables: Any, x: jax.Array) -> Any:
        loss = lambda variables, x: jnp.sum(jnp.square(module.apply(variables, x, None, ids, rngs=rngs)[0]))
        return jax.grad(loss, argnums=(0, 1))(variables, x)

    def prompt(variables: Any, x: jax.Array) -> Any:
        return module.apply(variables, x, module.init_state(rows, length), ids)

    program = jax.jit(prompt if is_prompt else update).lower(variables, x).compile()
    memory: Any = program.memory_analysis()
    return lambda: jax.block_until_ready(program(variables, x)), memory.temp_size_in_bytes


def measured(
    options: argparse.Namespace, case: str, length: int, names: Sequence[str], *, is_prompt: bool
) -> dict[str, Any]:
    """Returns the line of a case and length: seconds of dense attention, and ratios to it, and memory."""
    works: dict[str, Callable[[], Any]] = {}
    memory: dict[str, Any] = {}
    results: dict[str, Any] = {}
    for name in names:
        implementation, _, block = name.partition(" ")
        module = layer(options, case, implementation, int(block or 512))
        try:
            works[name], temporaries = compiled(options, case, length, module, is_prompt=is_prompt)
            results[name] = jax.device_get(works[name]())
            memory[name] = temporaries / 2**20
        except Exception as error:  # the other implementations are measured
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            works.pop(name, None)
            memory[name] = OUT_OF_MEMORY
    seconds = alternate(options.rounds, **works)
    line: dict[str, Any] = {"case": f"{case}, {'prompt' if is_prompt else 'update'}", "positions": length}
    if "dense" in seconds:
        dense = seconds.pop("dense")
        line |= {"dense, ms": 1e3 * dense} | {f"{name} / dense": time / dense for name, time in seconds.items()}
    else:
        line |= {f"{name}, ms": 1e3 * time for name, time in seconds.items()}
    exact = None if CASES[case].get("dropout_rate") else results.pop("dense", None)
    off = {} if exact is None else {f"{name}, off": difference(exact, other) for name, other in results.items()}
    return line | {f"{name}, MiB": amount for name, amount in memory.items()} | off


def difference(expected: Any, found: Any) -> float:
    """Returns the largest difference between arrays of two trees, in parts of the largest value of the array."""
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    as_float = lambda x: np.asarray(x, np.float32)
    return max(float(np.max(np.abs(as_float(a) - as_float(b))) / np.max(np.abs(as_float(a)))) for a, b in pairs)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--tokens", type=int, default=8192, help="positions of all rows together")
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--kv_heads", type=int, help="by default as many as heads")
    parser.add_argument("--head_dim", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--blocks", type=int, nargs="+", default=[512])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    blockwise = [f"blockwise {block}" for block in options.blocks]
    lines, kernel = [], KERNELS.get(jax.default_backend())
    facts = {"machine": machine(), "device": jax.devices()[0].device_kind, "tokens": options.tokens}
    facts |= {"heads": f"{options.heads} of {options.head_dim}", "dtype": options.dtype}
    publish = functools.partial(show, "attention", facts=facts, publish=options.publish)
    for case in options.cases:
        names = ["dense", *blockwise, *([kernel] if kernel and case != "dropout" else [])]
        for is_prompt in (False, True) if case == "plain" and not kernel else (False,):
            lines += [measured(options, case, n, names, is_prompt=is_prompt) for n in options.lengths]
    publish(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
