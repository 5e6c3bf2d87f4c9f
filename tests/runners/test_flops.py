"""FLOPs from a jaxpr: kernels count what the plain path counts, and an unknown kernel is refused."""

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import pallas as pl
from jax.extend.core import Primitive

from layers.errors import UsageError
from runners.flops import matmul_flops

QUERY = jax.ShapeDtypeStruct((2, 64, 4, 16), jnp.bfloat16)
KEY = jax.ShapeDtypeStruct((2, 64, 2, 16), jnp.bfloat16)


@pytest.fixture
def cudnn_without_a_gpu(monkeypatch):
    """Lets JAX trace cuDNN's attention, which asks for a device and a library before it does."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda *_: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda *_: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_at_least", lambda *_: True, raising=False)


@pytest.mark.parametrize("key", [QUERY, KEY], ids=["heads", "groups"])
def test_attention_by_cudnn_counts_what_plain_attention_counts(key, cudnn_without_a_gpu):
    def attend(implementation):
        apply = lambda q, k: jax.nn.dot_product_attention(q, k, k, is_causal=True, implementation=implementation)
        return matmul_flops(apply, QUERY, key), matmul_flops(jax.grad(lambda q, k: apply(q, k).sum()), QUERY, key)

    forward, both = attend("cudnn")
    assert forward == attend("xla")[0] == 2 * 2 * 2 * 4 * 64 * 64 * 16
    assert both == 3 * forward


def test_a_pallas_kernel_counts_its_body_for_each_point_of_the_grid():
    def kernel(a, b, out):
        out[...] = a[...] @ b[...]

    block = pl.BlockSpec((8, 16), lambda i: (i, 0))
    whole = pl.BlockSpec((16, 16), lambda i: (0, 0))
    call = pl.pallas_call(
        kernel, jax.ShapeDtypeStruct((32, 16), jnp.float32), grid=(4,), in_specs=[block, whole], out_specs=block
    )
    assert matmul_flops(call, jnp.zeros((32, 16)), jnp.zeros((16, 16))) == 2 * 32 * 16 * 16


def test_a_kernel_without_a_rule_is_refused():
    kernel = Primitive("their_kernel")
    kernel.def_abstract_eval(lambda a, b: jax.core.ShapedArray(a.shape, a.dtype))
    with pytest.raises(UsageError, match="FLOPs of the primitive 'their_kernel' cannot be counted"):
        matmul_flops(kernel.bind, jnp.zeros((4, 4)), jnp.zeros((4, 4)))


def test_convolutions_and_loops():
    convolve = lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME")
    assert matmul_flops(convolve, jnp.zeros((1, 3, 8, 8)), jnp.zeros((5, 3, 3, 3))) == 2 * 8 * 8 * 5 * 3 * 9
    scanned = lambda x: jax.lax.scan(lambda c, _: (c @ c, None), x, length=7)[0]
    assert matmul_flops(scanned, jnp.zeros((4, 4))) == 7 * 2 * 4**3
