"""Annotations of layers and tasks are checked at each call in these tests."""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from layers.cross_entropy import cross_entropy_sums
from layers.norm import rms_normalize
from tasks.inputs.byte_text import check_fractions


def test_shapes_and_dtypes_of_arrays():
    for good in (jnp.ones((2, 3)), np.ones((2, 3), np.float32)):
        assert rms_normalize(good, 1e-6).shape == (2, 3)
    with pytest.raises(TypeCheckError, match="Actual value: i32"):
        rms_normalize(jnp.ones((2, 3), jnp.int32), 1e-6)
    logits, targets, weights = jnp.ones((2, 3, 5)), jnp.zeros((2, 3), int), jnp.ones((2, 3))
    assert cross_entropy_sums(logits, targets, weights).weight == 6
    with pytest.raises(TypeCheckError, match="weights"):
        cross_entropy_sums(logits, targets, weights[:, 1:])  # the weights would be broadcast


def test_types_of_other_arguments():
    check_fractions((1, 0, 0))
    with pytest.raises(TypeCheckError, match=r"Expected type: tuple\[float"):
        check_fractions("all")
