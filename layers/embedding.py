"""Token embedding, and the tied or untied output layer from features to logits."""

import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.collectives import on_each_device
from layers.errors import UsageError
from layers.specs import P, Specs, axes_of
from layers.weights.initializers import Constant, Initializer
from layers.weights.products import product
from layers.weights.weight import weight


class Embedding(nn.Module):
    """Maps token ids to vectors; `attend` uses the same table as output layer (Press and Wolf 2017)."""

    SPECS: ClassVar[tuple[str, ...]] = ("embedding_vm", "unembedding_bias_v")

    specs: Specs
    vocab_size: int
    model_dim: int
    initializer: Initializer
    table_rows: int | None = None  # rows stored, those from vocab_size on as padding for the split; None is vocab_size
    scale: float = 1.0  # factor on the looked-up vectors
    logits_scale: float = 1.0  # factor on the logits of a tied head, before the bias
    logits_softcap: float | None = None  # c: logits become c tanh(logits / c), after the bias
    use_bias: bool = False  # adds a bias to the logits of a tied head
    placement: P | None = None  # of tokens, if each device looks up its own (look_up)
    dtype: str = "float32"  # of the vectors
    param_dtype: str = "float32"

    def setup(self):
        used = (self.vocab_size, self.model_dim)
        shape = (self.vocab_size if self.table_rows is None else self.table_rows, self.model_dim)
        if shape < used:
            raise UsageError(f"table_rows must be at least vocab_size = {self.vocab_size} (got {shape[0]}).")
        init: Any = {"init": self.initializer, "role": "embedding", "fan_in": 1}
        self.table_vm = weight(self, "embedding_vm", shape, used=used, dtype="float32", **init)
        if self.use_bias:
            bias: Any = {"init": Constant(), "role": "bias"}
            self.bias_v = weight(self, "unembedding_bias_v", shape[:1], used=used[:1], **bias)

    def __call__(self, tokens: Int[Array, "b s"]) -> Float[Array, "b s m"]:
        return look_up(self.table_vm, tokens, self.dtype, self.specs["embedding_vm"], self.placement) * self.scale

    def attend(self, x: Float[Array, "b s m"]) -> Float[Array, "b s v"]:
        """Returns logits in float32: products of features and token vectors; the lowest float for padding rows."""
        table_vm = self.table_vm.astype(self.dtype)
        logits = self.logits_scale * product(x, table_vm, by_rows=True, preferred_element_type=jnp.float32)
        if self.use_bias:
            logits += self.bias_v
        return _finished(logits, self.vocab_size, self.logits_softcap)


class Unembedding(nn.Module):
    """Maps features to logits in float32 with its own matrix (an untied head)."""

    SPECS: ClassVar[tuple[str, ...]] = ("unembedding_mv", "unembedding_bias_v")

    specs: Specs
    vocab_size: int
    model_dim: int
    initializer: Initializer
    table_columns: int | None = None  # columns stored, those from vocab_size on as padding; None is vocab_size
    use_bias: bool = False
    logits_scale: float = 1.0  # factor on the logits, before the bias
    logits_softcap: float | None = None  # c: logits become c tanh(logits / c), after the bias
    dtype: str = "float32"  # of the matrix product's operands
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "b s m"]) -> Float[Array, "b s v"]:
        columns = self.vocab_size if self.table_columns is None else self.table_columns
        shape, used = (self.model_dim, columns), (self.model_dim, self.vocab_size)
        w_mv = weight(self, "unembedding_mv", shape, init=self.initializer, role="output", used=used)
        logits = product(x, w_mv.astype(self.dtype), preferred_element_type=jnp.float32)
        logits = self.logits_scale * logits
        if self.use_bias:
            bias: Any = {"init": Constant(), "role": "bias"}
            logits += weight(self, "unembedding_bias_v", (columns,), used=used[1:], **bias)
        return _finished(logits, self.vocab_size, self.logits_softcap)


def _finished(logits: Float[Array, "b s v"], vocab_size: int, softcap: float | None) -> Float[Array, "b s v"]:
    """Returns the logits with a cap (Gemma Team 2024, section 2), and the lowest float at padding."""
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    if logits.shape[-1] == vocab_size:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, jnp.finfo(jnp.float32).min)


def look_up(
    table: Float[Array, "v m"], ids: Int[Array, "b s"], dtype: str, spec: P, placement: P | None = None
) -> Float[Array, "b s m"]:
    """Returns rows of a table in `dtype`, NaN for numbers beyond it.

    With a placement of the ids, the program inside is that of one device: each looks up its own ids, in its part of the
    table's rows, and the gradients of the table are all-reduced. The compiler would send what the gradients add to a
    table to all devices of an axis that splits ids and not the table, which the stages of a pipeline do.

    Args:
      table: the table, placed by `spec`.
      ids: numbers of rows.
      dtype: of the result.
      spec: placement of the table. Axes that also split ids do not split it here.
      placement: of the ids; None leaves the program to the compiler.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = lambda entry: tuple(axis for axis in axes_of(entry) if axis not in mesh.manual_axes and mesh.shape[axis] > 1)
    of_ids = [] if placement is None or mesh.empty else [free(entry) for entry in placement]
    devices = lambda axes: math.prod(mesh.shape[axis] for axis in axes)
    if not any(of_ids) or any(size % devices(axes) for size, axes in zip(ids.shape, of_ids, strict=True)):
        return jnp.take(table, ids, axis=0).astype(dtype)
    taken = {axis for axes in of_ids for axis in axes}
    rows, columns = (tuple(axis for axis in free(entry) if axis not in taken) for entry in spec)

    def local(parts: Int[Array, "1"], table: Float[Array, "v m"], ids: Int[Array, "b s"]) -> Float[Array, "b s m"]:
        own = ids - parts[0] * table.shape[0]
        is_own = (own >= 0) & (own < table.shape[0])
        found = jnp.take(table, jnp.where(is_own, own, 0), axis=0).astype(dtype)
        found = jnp.where(is_own[..., None], found, 0)
        found = jax.lax.psum(found, rows) if rows else found
        return jnp.where((ids < devices(rows) * table.shape[0])[..., None], found, jnp.nan)

    specs = P(rows), P(rows, columns), P(*of_ids)
    run = on_each_device(local, specs, P(*of_ids, columns))
    return run(jnp.arange(devices(rows)), table, ids)
