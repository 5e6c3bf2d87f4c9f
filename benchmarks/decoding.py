"""Cached sampling in one compiled loop against recomputing the whole sequence for every token.

python -m benchmarks.decoding
"""

import argparse
import sys
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from registry.resolve import resolve
from runners.session import Session
from tasks.decoding import Sampler, generate
from tasks.language_model_task import LanguageModelTask


def cached(session: Session, variables, prompt, new_tokens: int) -> tuple[np.ndarray, float]:
    """Greedy tokens from the compiled loop, and tokens per second."""
    real = np.ones_like(prompt)
    choices = {"new_tokens": new_tokens, "sampler": Sampler(temperature=0.0)}
    call = lambda: jax.block_until_ready(
        generate(session.task, variables, prompt, real, jax.random.key(0), **choices)[0]
    )
    call()
    began = time.perf_counter()
    drawn = call()
    return np.asarray(drawn), drawn.size / (time.perf_counter() - began)


def uncached(session: Session, variables, prompt, new_tokens: int) -> tuple[np.ndarray, float]:
    """The same tokens by a jitted full pass over a padded buffer for each one."""
    model = cast(LanguageModelTask, session.task).model
    length = prompt.shape[1]
    buffer = jnp.pad(jnp.asarray(prompt), ((0, 0), (0, new_tokens)))

    @jax.jit
    def step(variables, buffer, end):
        result: Any = model.apply(variables, buffer)
        features, _ = result
        last = jax.lax.dynamic_slice_in_dim(features, end - 1, 1, axis=1)
        logits: Any = model.apply(variables, last, method="logits")
        token = logits[:, 0].argmax(-1)[:, None].astype(jnp.int32)
        return jax.lax.dynamic_update_slice_in_dim(buffer, token, end, axis=1)

    jax.block_until_ready(step(variables, buffer, length))
    began = time.perf_counter()
    for i in range(new_tokens):
        buffer = step(variables, buffer, length + i)
    drawn = np.asarray(jax.block_until_ready(buffer))[:, length:]
    return drawn, drawn.size / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exp", default="tiny.StdlibTiny")
    parser.add_argument("--new_tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="batch sizes")
    options = parser.parse_args()
    session = Session(resolve(options.exp))
    with session.placed():
        variables = session.init().variables
        print(f"{options.exp}, prompt 32, {options.new_tokens} new tokens, greedy")
        for rows in options.rows:
            prompt = session.train.input.batch(0).inputs[:1, :32].repeat(rows, axis=0)
            fast, fast_rate = cached(session, variables, prompt, options.new_tokens)
            slow, slow_rate = uncached(session, variables, prompt, options.new_tokens)
            agree = (fast == slow).mean()
            print(
                f"batch {rows}: cached {fast_rate:,.0f} tokens/s, uncached {slow_rate:,.0f} tokens/s, "
                f"ratio {fast_rate / slow_rate:.1f}; {agree:.1%} of tokens agree"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
