"""Initializers of weights, as small values that are easy to print, compare and override."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp


@runtime_checkable
class Initializer(Protocol):
    """Draws a weight: `(key, shape, dtype, fan_in) -> array`."""

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array: ...

    def deviation(self, fan_in: int) -> float:
        """Returns the standard deviation of the drawn values."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normal:
    """Gaussian with mean 0 and a fixed standard deviation."""

    stddev: float  # standard deviation of the draw

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        del fan_in
        return (self.stddev * jax.random.normal(key, shape)).astype(dtype)

    def deviation(self, fan_in: int) -> float:
        del fan_in
        return self.stddev

    def __str__(self) -> str:
        return f"normal({self.stddev:.4g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FanIn:
    """Gaussian, mean 0, standard deviation `scale / sqrt(fan_in)` (LeCun et al. 1998, Efficient BackProp, 4.6)."""

    scale: float = 1.0  # factor on 1 / sqrt(fan_in)

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        return (self.deviation(fan_in) * jax.random.normal(key, shape)).astype(dtype)

    def deviation(self, fan_in: int) -> float:
        return self.scale * fan_in**-0.5

    def __str__(self) -> str:
        return f"fan_in({self.scale:.4g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InverseFanIn:
    """Gaussian, mean 0, standard deviation `scale / fan_in`: output weights of muP (Yang et al. 2021, table 3)."""

    scale: float = 1.0  # factor on 1 / fan_in

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        return (self.deviation(fan_in) * jax.random.normal(key, shape)).astype(dtype)

    def deviation(self, fan_in: int) -> float:
        return self.scale / fan_in

    def __str__(self) -> str:
        return f"inverse_fan_in({self.scale:.4g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FanInUniform:
    """Uniform on +-`scale * sqrt(3 / fan_in)`: the standard deviation of FanIn with bounded values."""

    scale: float = 1.0  # factor on 1 / sqrt(fan_in)

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        limit = self.scale * (3 / fan_in) ** 0.5
        return jax.random.uniform(key, shape, minval=-limit, maxval=limit).astype(dtype)

    def deviation(self, fan_in: int) -> float:
        return self.scale * fan_in**-0.5

    def __str__(self) -> str:
        return f"fan_in_uniform({self.scale:.4g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform:
    """Uniform with mean 0 and a fixed standard deviation: on +-`sqrt(3) stddev`."""

    stddev: float  # standard deviation of the draw

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        del fan_in
        limit = self.stddev * 3**0.5
        return jax.random.uniform(key, shape, minval=-limit, maxval=limit).astype(dtype)

    def deviation(self, fan_in: int) -> float:
        del fan_in
        return self.stddev

    def __str__(self) -> str:
        return f"uniform({self.stddev:.4g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orthogonal:
    """Orthonormal columns (rows, if they are fewer) times `scale` (Saxe et al. 2014); all dimensions but the last are
    flattened to one.
    """

    scale: float = 1.0  # factor on the orthonormal matrix

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        del fan_in
        return jax.nn.initializers.orthogonal(self.scale)(key, shape, jnp.float32).astype(dtype)

    def deviation(self, fan_in: int) -> float:
        return self.scale * fan_in**-0.5  # of a matrix not wider than its fan-in

    def __str__(self) -> str:
        return f"orthogonal({self.scale:.4g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """A constant."""

    value: float = 0.0  # the value

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: str, fan_in: int) -> jax.Array:
        del key, fan_in
        return jnp.full(shape, self.value, dtype)

    def deviation(self, fan_in: int) -> float:
        del fan_in
        return 0.0

    def __str__(self) -> str:
        return f"constant({self.value:.4g})"
