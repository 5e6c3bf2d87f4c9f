"""Plans of small forms: regressions planted into an update of every family show in its golden plan."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

from layers.embedding import Embedding, Unembedding
from layers.specs import P
from registry.records.diff import differing_figures
from registry.resolve import resolve
from registry.tool import golden
from runners.planner.small_form import COMPILER_OPTIONS, program_plan, small_form, small_plan, split_mesh
from runners.session import Session
from tasks.zero import placed_table

# Fully sharded; experts; positions split; ZeRO.
SOME = ("tiny.CharTiny", "gemma.Gemma2_27B", "mix.GptMoeStdlib", "vq.FullLarge", "zero.Zero1B1Stage1")
ALL = [pytest.param(name, marks=[] if name == "tiny.CharTiny" else pytest.mark.slow) for name in SOME]


def test_meshes_are_split_along_as_many_axes_as_possible():
    assert [split_mesh(axes) for axes in (1, 2, 3, 4)] == [(8,), (2, 4), (2, 2, 2), (1, 2, 2, 2)]


def test_a_stated_mesh_is_kept():
    assert small_form(resolve("CharTiny", ["DEVICE_MESH_SHAPE=8,1"])).mesh_shape(8) == {"data": 8, "model": 1}
    assert small_form(resolve("gshard.DenseLm128B8x8")).mesh_shape(8) == {"data": 2, "model": 4}


class Planted:
    """A family's update, into which a test plants a regression."""

    def __init__(self, name):
        self.entry = resolve(name)
        self.session = Session(small_form(self.entry), jax.devices()[:8])
        table = placed_table(self.session.task, self.session.mesh_shape)
        local = {row.path: row.bytes_per_device(self.session.mesh_shape) for row in table}
        # A weight of the stack is an operand of its loop: the compiler cannot fuse a copy of it into its use.
        split = [row for row in table if local[row.path] < row.bytes and "stack" in row.path]
        row = max(split, key=lambda row: row.bytes)
        self.path, self.spec, self.bytes = row.path, row.spec, local[row.path]

    def weight(self, state):
        return next(leaf for path, leaf in self.leaves(state.variables) if path == self.path)

    def leaves(self, variables):
        found = jax.tree_util.tree_leaves_with_path(variables)
        return [("/".join(str(key.key) for key in path), leaf) for path, leaf in found]

    def plan(self, step, *, donated=(0,)):
        session = self.session
        with session.placed():
            shardings = session.abstract.state_shardings
            jitted = jax.jit(step, donate_argnums=donated, out_shardings=shardings, keep_unused=True)
            traced = jitted.trace(session.abstract.state, session.abstract.batch, session.abstract.seed)
            return program_plan(session, traced, traced.lower().compile(COMPILER_OPTIONS))

    def drift(self, plan):
        """The figures that differ from the golden file, in which a command would name them."""
        row = golden.compare(self.entry, sections=[golden.PLAN], plan=plan)
        assert not row["ok"]
        return differing_figures([golden.stored_plan(self.entry)["plan"], plan])


@pytest.fixture(params=ALL, scope="module")
def planted(request):
    return Planted(request.param)


def test_one_more_all_gather(planted):
    """Of the largest split weight of the stack, along the first dimension that is split."""
    step, spec = planted.session.functions.step, list(planted.spec)
    spec[next(place for place, axes in enumerate(spec) if axes is not None)] = None
    gathered_as = NamedSharding(planted.session.mesh, P(*spec))

    def gathers(state, batch, seed):
        gathered = jax.lax.with_sharding_constraint(planted.weight(state), gathered_as)
        new = step(state, batch, seed)
        return new.replace(bad_step=new.bad_step + (jnp.max(gathered) > 1e30).astype(jnp.int32))

    drift = planted.drift(planted.plan(gathers))
    more = [(b or 0) - (a or 0) for figure, (a, b) in drift.items() if "all-gather" in figure and "count" in figure]
    assert sum(more) == 1


def test_a_weight_copied(planted):
    """A rounded copy of the largest split weight of the stack."""
    step = planted.session.functions.step

    def copies(state, batch, seed):
        copied = lambda name, leaf: jax.lax.reduce_precision(leaf, 5, 2) if name == planted.path else leaf
        changed = [copied(name, leaf) for name, leaf in planted.leaves(state.variables)]
        variables = jax.tree.unflatten(jax.tree.structure(state.variables), changed)
        return step(state.replace(variables=variables), batch, seed)

    a, b = planted.drift(planted.plan(copies))["bytes_per_device.accessed"]
    assert b - a >= planted.bytes


def test_a_lost_donation(planted):
    step = planted.session.functions.step
    drift = planted.drift(planted.plan(lambda state, batch, seed: step(state, batch, seed), donated=()))
    assert drift["bytes_per_device.aliased"][1] == 0
    assert set(drift) >= {"bytes_per_device.aliased"}


def test_float32_logits(planted, monkeypatch):
    """Families that compute in float32 are compared in bfloat16."""
    own = [] if small_form(planted.entry).DTYPE == "bfloat16" else ["DTYPE=bfloat16"]
    entry = resolve(planted.session.name, own)
    before = small_plan(entry) if own else golden.stored_plan(entry)["plan"]
    for layer, method in ((Embedding, "attend"), (Unembedding, "__call__")):
        original = getattr(layer, method)
        wide = lambda self, x, original=original: original(self, x.astype(jnp.float32))
        monkeypatch.setattr(layer, method, wide)
    drift = differing_figures([before, small_plan(entry)])
    (a, b), (c, d) = (drift[f"flops_per_step.{dtype}"] for dtype in ("float32", "bfloat16"))
    assert b - (a or 0) == c - d > 0
