"""Experts without slots compared with slots for a share of the tokens and for all: time of an update, and memory.

    python -m benchmarks.one_layer.experts

One layer with gated experts; an update is its forward and backward pass. "slots x 1.25" drops choices beyond 1.25 times
an even load. A dense layer with as many products as the experts of a token shows what routing and moving rows cost.
Turns alternate between layers. JAX_PLATFORMS is cpu by default.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta

from benchmarks.tables import alternate, flags, machine, show
from layers.feed_forward.dense import FeedForward
from layers.feed_forward.experts import MixtureOfExperts
from layers.specs import Specs
from layers.weights.initializers import FanIn
from registry.templates.decoder import DecoderLm

NAMES = ("no slots", "slots x 1.25", "slots for all", "dense")
MOST_FOR_ALL = 8  # experts with slots for all tokens: their products grow with the number of experts


def layers(options: argparse.Namespace, experts: int) -> dict[str, nn.Module]:
    """Returns the layers by name."""
    specs, init = DecoderLm().specs, FanIn()
    parts: Any = {"initializer": init, "out_initializer": init, "activations": Specs(), "model_dim": options.model_dim}
    parts |= {"gated": True, "activation": "silu", "dtype": options.dtype}
    routed: Any = {"num_experts": experts, "experts_per_token": options.experts_per_token, "routing": "top_k"}
    routed |= {"hidden_dim": options.expert_dim, "specs": specs.of(MixtureOfExperts), **parts}
    groups = max(1, options.tokens // 1024)
    dense = {"hidden_dim": options.experts_per_token * options.expert_dim, "specs": specs.of(FeedForward)}
    share = options.experts_per_token * 1.25
    found = {
        "no slots": MixtureOfExperts(**routed, capacity_factor=None),
        "slots x 1.25": MixtureOfExperts(**routed, capacity_factor=share, num_groups=groups),
        "slots for all": MixtureOfExperts(**routed, capacity_factor=float(experts), num_groups=groups),
        "dense": FeedForward(**dense, **parts),
    }
    if experts > MOST_FOR_ALL:
        del found["slots for all"]
    return found


def compiled(options: argparse.Namespace, module: nn.Module) -> tuple[Callable[[], Any], int]:
    """Returns a function that runs an update of the layer once, and the bytes of its temporary memory."""
    x = jax.random.normal(jax.random.key(0), (1, options.tokens, options.model_dim), options.dtype)
    variables = meta.unbox(module.init(jax.random.key(1), x[:, :16]))

    def update(variables: Any, x: jax.Array) -> Any:
        apply: Any = module.apply
        loss = lambda variables, x: jnp.sum(jnp.square(apply(variables, x)))
        return jax.grad(loss, argnums=(0, 1))(variables, x)

    program = jax.jit(update).lower(variables, x).compile()
    memory: Any = program.memory_analysis()
    return lambda: jax.block_until_ready(program(variables, x)), memory.temp_size_in_bytes


def measured(options: argparse.Namespace, experts: int) -> dict[str, Any]:
    """Returns the line of a number of experts: seconds without slots, the others' ratios to it, and memory."""
    made = {name: compiled(options, module) for name, module in layers(options, experts).items()}
    for run, _ in made.values():
        run()
    seconds = alternate(options.rounds, **{name: run for name, (run, _) in made.items()})
    own = seconds.pop("no slots")
    line: dict[str, Any] = {"experts": experts, "no slots, ms": 1e3 * own}
    line |= {f"{name} / no slots": seconds[name] / own if name in seconds else None for name in NAMES[1:]}
    return line | {f"{name}, MiB": made[name][1] / 2**20 if name in made else None for name in NAMES}


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--experts", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--experts_per_token", type=int, default=2)
    parser.add_argument("--model_dim", type=int, default=512)
    parser.add_argument("--expert_dim", type=int, default=512)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    facts = {"machine": machine(), "device": jax.devices()[0].device_kind, "tokens": options.tokens}
    facts |= {"per token": f"{options.experts_per_token} experts of {options.model_dim} x {options.expert_dim}"}
    show("experts", [measured(options, count) for count in options.experts], facts=facts, publish=options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
