"""Position-wise feed-forward layer, plain or gated."""

from typing import Any, ClassVar

import flax.linen as nn
from jaxtyping import Array, Float

from layers.auxiliary import place, watch
from layers.dropout import dropout
from layers.feed_forward.activations import activation
from layers.positions.segments import SegmentIds
from layers.specs import Specs
from layers.weights.initializers import Constant, Initializer
from layers.weights.products import product, products_of
from layers.weights.weight import weight


class FeedForward(nn.Module):
    """act(x W_in) W_out, or gated: (act(x W_gate) * x W_in) W_out (Shazeer 2020, GLU variants, equation 6)."""

    SPECS: ClassVar[tuple[str, ...]] = (
        "ffn_in_mf",
        "ffn_gate_mf",
        "ffn_out_fm",
        "ffn_in_bias_f",
        "ffn_gate_bias_f",
        "ffn_out_bias_m",
        "hidden_bsf",
    )

    specs: Specs
    activations: Specs
    model_dim: int
    hidden_dim: int
    initializer: Initializer  # of the matrices into the hidden layer
    out_initializer: Initializer  # of the matrix out of the hidden layer
    activation: str = "gelu_tanh"  # a name in layers.feed_forward.activations
    gated: bool = False
    joint_projections: bool = True  # one product for both matrices of a gated layer
    use_bias: bool = False
    dropout_rate: float = 0.0  # on the hidden layer
    dtype: str = "float32"  # of the computation
    param_dtype: str = "float32"

    def _matrix(self, name: str) -> Float[Array, "m f"]:
        init: Any = {"init": self.initializer, "role": "hidden"}
        return weight(self, f"{name}_mf", (self.model_dim, self.hidden_dim), **init).astype(self.dtype)

    def _dense_in(self, x) -> list[Float[Array, "b s f"]]:
        names = ["ffn_in", "ffn_gate"] if self.gated else ["ffn_in"]
        hidden = products_of(x, [self._matrix(name) for name in names], self.joint_projections)
        if self.use_bias:
            shape: Any = {"shape": (self.hidden_dim,), "init": Constant(), "role": "bias"}
            hidden = [
                y + weight(self, f"{name}_bias_f", **shape).astype(self.dtype)
                for y, name in zip(hidden, names, strict=True)
            ]
        return [place(self, "hidden_bsf", y) for y in hidden]

    @nn.compact
    def __call__(self, x: Float[Array, "b s m"], segment_ids: SegmentIds = None) -> Float[Array, "b s m"]:
        """Processes each position independently; `segment_ids` is part of the interface and not used."""
        act = activation(self.activation)
        h, *gates = self._dense_in(x)
        h = act(gates[0]) * h if self.gated else act(h)
        h = dropout(self, watch(self, "activated", h), self.dropout_rate)
        w_fm = weight(self, "ffn_out_fm", (self.hidden_dim, self.model_dim), init=self.out_initializer, role="hidden")
        y = product(h, w_fm.astype(self.dtype))
        if self.use_bias:
            y += weight(self, "ffn_out_bias_m", (self.model_dim,), init=Constant(), role="bias").astype(self.dtype)
        return y
