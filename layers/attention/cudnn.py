"""cuDNN's flash attention on GPUs."""

import jax
from jaxtyping import Array, Bool, Float

from layers.attention.blocks import Keys, Scores


def attend(
    how: Scores, scale: float, query: Float[Array, "b s n d"], keys: Keys, mask: Bool[Array, "b s t"] | None
) -> Float[Array, "b s n e"]:
    """Returns the weighted values of each query, as the dense path of layers.attention.softmax does.

    Args:
      how: from scores to weights: softmax, with a window.
      scale: factor on the scores.
      query: queries, 16-bit.
      keys: keys of shape (b, k, t, d) and values (b, k, t, e).
      mask: True at keys that a query sees, in place of causality and the window.
    """
    is_causal = how.causal and mask is None
    return jax.nn.dot_product_attention(
        query,
        keys.key.swapaxes(1, 2),
        keys.value.swapaxes(1, 2),
        mask=None if mask is None else mask[:, None],
        scale=scale,
        is_causal=is_causal,
        local_window_size=None if how.window is None or not is_causal else (how.window - 1, 0),
        implementation="cudnn",
    )
