"""FLOPs by operation: products wherever they are, and an error for work that JAX does not show."""

import sys

import jax
import jax.numpy as jnp
import pytest
from flax.core import meta
from jax import P
from jax.experimental import pallas as pl
from jax.extend import core
from jax.sharding import AbstractDevice, AbstractMesh

from layers.attention.softmax import Attention
from layers.auxiliary import OVERHEAD
from layers.errors import UsageError
from layers.platform import counting_products
from layers.specs import Specs
from layers.weights.initializers import FanIn
from registry.templates.decoder import DecoderLm
from runners import flops
from runners.flops import matmul_flops
from runners.machine.chips import CHIPS
from runners.planner.topologies import planned_cudnn

X, Y = jnp.ones((8, 4)), jnp.ones((4, 4))


@pytest.fixture
def cudnn():
    """Makes layers and JAX trace cuDNN's attention on a machine without a GPU and cuDNN."""
    device = AbstractDevice(CHIPS["h100"].kinds[0], None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=device)):
        with planned_cudnn(CHIPS["h100"]):
            yield


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("segments", [False, True])
def test_attention_by_cudnn_counts_as_that_by_products(cudnn, kv_heads, segments):
    """A causal mask halves neither, so that figures of CPUs and GPUs compare."""
    init = {"initializer": FanIn(), "out_initializer": FanIn(), "specs": DecoderLm().specs.of(Attention)}
    sizes = {"model_dim": 32, "num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 8, "dtype": "bfloat16"}
    x = jnp.ones((2, 16, 32), jnp.bfloat16)
    ids = jnp.ones((2, 16), jnp.int32) if segments else None
    plain, fused = (Attention(**init, **sizes, activations=Specs(), implementation=i) for i in ("dense", "cudnn"))
    variables = meta.unbox(jax.eval_shape(plain.init, jax.random.key(0), x))
    count = lambda layer: matmul_flops(lambda v, x: layer.apply(v, x, None, ids)[0], variables, x)
    projections = 2 * 32 * 32 * 8 * (2 * 4 + 2 * kv_heads)
    with counting_products():
        assert count(fused) == count(plain)
    assert count(fused) == count(plain) == projections + 2 * 2 * (2 * 4 * 16 * 16 * 8)


def test_the_backward_pass_of_cudnn_computes_scores_again(cudnn):
    q = jnp.ones((2, 16, 4, 8), jnp.bfloat16)
    attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, implementation="cudnn").sum()
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert matmul_flops(attend, q, q, q) == 2 * product
    assert matmul_flops(jax.grad(attend, argnums=(0, 1, 2)), q, q, q) == (2 + 5) * product


def _kernel(x, y, cost_estimate=None):
    def body(x, y, out):
        @pl.when(pl.program_id(0) > 0)
        def _():
            out[...] = x[...] @ y[...]

    rows = lambda i: (i, 0)
    return pl.pallas_call(
        body,
        grid=(4,),
        in_specs=[pl.BlockSpec((2, 4), rows), pl.BlockSpec((4, 4), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((2, 4), rows),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        cost_estimate=cost_estimate,
    )(x, y)


def test_a_pallas_kernel_counts_once_per_point_of_its_grid():
    assert matmul_flops(_kernel, X, Y) == matmul_flops(jnp.matmul, X, Y) == 2 * 8 * 4 * 4


def test_a_pallas_kernel_that_states_its_cost_counts_that():
    stated = pl.CostEstimate(flops=77, transcendentals=0, bytes_accessed=0)
    assert matmul_flops(lambda x, y: _kernel(x, y, stated), X, Y) == 77


def _hidden(x):
    return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x) * 2


def test_work_that_jax_does_not_show_is_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"'my_kernel' \(primitive ffi_call\) cannot .*RULES\['my_kernel"):
        matmul_flops(_hidden, X)
    monkeypatch.setitem(flops.RULES, "my_kernel", lambda equation: 3 * equation.invars[0].aval.size)
    assert matmul_flops(_hidden, X) == 3 * X.size


def test_a_callback_into_python_is_refused():
    shape = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    with pytest.raises(UsageError, match="pure_callback"):
        matmul_flops(lambda x: jax.pure_callback(lambda y: y, shape, x), jnp.ones((8, 4)))


def test_work_that_is_not_part_of_the_models_may_be_hidden():
    def moved(x):
        with jax.named_scope(OVERHEAD):
            return _hidden(x)

    assert matmul_flops(moved, X, leave_out=OVERHEAD) == 0


def test_convolutions_and_ragged_products():
    sequence, filters = jnp.ones((2, 16, 8)), jnp.ones((3, 4, 6))  # two groups of four channels
    convolve = lambda x, w: jax.lax.conv_general_dilated(
        x, w, (1,), "SAME", dimension_numbers=("NTC", "TIO", "NTC"), feature_group_count=2
    )
    assert matmul_flops(convolve, sequence, filters) == 2 * (2 * 16 * 6) * (3 * 4)
    experts, sizes = jnp.ones((2, 4, 5)), jnp.array([3, 5])
    product = lambda x, w: jax.lax.ragged_dot(x, w, sizes)
    assert matmul_flops(product, X, experts) == 2 * 8 * 4 * 5
    gradient = jax.grad(lambda *xw: product(*xw).sum(), argnums=(0, 1))
    assert matmul_flops(gradient, X, experts) == 3 * (2 * 8 * 4 * 5)


def test_parts_of_a_mesh_axis_count_over_all_devices():
    mesh = jax.make_mesh((4, 2), ("rows", "rest"))
    with jax.set_mesh(mesh):
        split = jax.shard_map(jnp.matmul, in_specs=(P("rows"), P()), out_specs=P("rows"), axis_names={"rows"})
        assert matmul_flops(split, X, Y) == 2 * 8 * 4 * 4


def test_one_branch_runs():
    choose = lambda i, x, y: jax.lax.cond(i, lambda: x @ y, lambda: x @ y @ y)
    assert matmul_flops(choose, True, X, Y) == 2 * (2 * 8 * 4 * 4)


def test_every_operation_of_this_jax_is_known():
    """One that a new JAX adds must go into a rule or a list, or a model that uses it cannot be counted."""
    modules = [m for name, m in sys.modules.items() if name.startswith(("jax._src.lax.", "jax._src.prng"))]
    defined = {v.name for module in modules for v in vars(module).values() if isinstance(v, core.Primitive)}
    hold_jaxprs = {"composite", "eval_jaxpr", "pallas_call", "shard_map"}
    hidden = {"scaled_dot", "symmetric_product"}
    assert defined - flops._WITHOUT_PRODUCTS - set(flops.RULES) - hold_jaxprs == hidden
