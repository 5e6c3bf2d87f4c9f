"""All-to-all of rows whose numbers differ: each device sends every other one the rows that are for it.

Dimensions: R rows of a device, P places for rows that it receives, N devices.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.feed_forward.grouped_rows import Places, in_order, in_parts


class Sizes(NamedTuple):
    """Numbers of rows, by sender and receiver."""

    rows_nn: Int[Array, "n n"]  # that are for the receiver
    sent_nn: Int[Array, "n n"]  # of them, those that find a place

    @property
    def at_sender_nn(self) -> Int[Array, "n n"]:
        """Place of the first row at its sender."""
        return jnp.cumsum(self.rows_nn, axis=1) - self.rows_nn

    @property
    def at_receiver_nn(self) -> Int[Array, "n n"]:
        """Place of the first row at its receiver."""
        return jnp.cumsum(self.sent_nn, axis=0) - self.sent_nn


class Plan(NamedTuple):
    """Where the rows of this device go."""

    places: Places  # of rows in the array that is sent
    sent: Int[Array, ""]  # number of rows that find a place on their device
    sizes: Sizes | None  # None: parts have equal sizes

    def rows_of(self, tokens: int) -> tuple[Int[Array, " p"], Int[Array, "t k"]]:
        """Returns indices for `moved`, from tokens to the array that is sent; rows are the k choices of each token."""
        per_token = self.places.place_r.size // tokens
        return self.places.row_p // per_token, self.places.place_r.reshape(tokens, per_token)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddedExchange:
    """Sends parts of equal size, filled up with zeros: any platform can, also CPUs."""

    axes: tuple[str, ...]  # mesh axes of the devices
    devices: int
    buffer: float | None  # rows that a device can receive, divided by their mean; None: all that devices can send

    def plan(self, device_r: Int[Array, " r"]) -> Plan:
        """Returns where rows go; `devices` for rows that are not sent. A row needs a place in its sender's part."""
        rows = device_r.size
        size = rows if self.buffer is None else min(rows, math.ceil(self.buffer * rows / self.devices))
        places = in_parts(device_r, self.devices, size)
        return Plan(places, jnp.sum(places.place_r < self.devices * size), None)

    def send(self, plan: Plan, x_pm: Float[Array, "p m"]) -> Float[Array, "p m"]:
        """Returns the rows that this device receives; zeros fill its places up."""
        return self._exchanged(x_pm)

    def send_numbers(self, plan: Plan, number_r: Int[Array, " r"], none: int) -> Int[Array, " p"]:
        """Returns a number of each received row; `none` for places without a row."""
        return self._exchanged(jnp.take(number_r, plan.places.row_p, mode="fill", fill_value=none))

    def send_back(self, plan: Plan, y_pm: Float[Array, "p m"]) -> Float[Array, "p m"]:
        """Returns the rows that come back, in the places of the array that was sent."""
        return self._exchanged(y_pm)

    def _exchanged(self, x: Array) -> Array:
        return jax.lax.all_to_all(x, self.axes, split_axis=0, concat_axis=0, tiled=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaggedExchange:
    """Sends the rows alone (`jax.lax.ragged_all_to_all`): XLA has it for GPUs and TPUs, not for CPUs."""

    axes: tuple[str, ...]  # mesh axes of the devices
    devices: int
    buffer: float | None  # rows that a device can receive, divided by their mean; None: all that devices can send

    def plan(self, device_r: Int[Array, " r"]) -> Plan:
        """Returns where rows go; `devices` for rows that are not sent. Rows of senders of higher number find no place
        if there is none left."""
        places, rows_n = in_order(device_r, self.devices)
        rows_nn = jax.lax.all_gather(rows_n, self.axes)
        received_nn = jnp.minimum(jnp.cumsum(rows_nn, axis=0), self._capacity(device_r.size))
        sizes_nn = jnp.diff(received_nn, axis=0, prepend=0)
        sizes = Sizes(rows_nn, sizes_nn)
        return Plan(places, jnp.sum(sizes_nn[jax.lax.axis_index(self.axes)]), sizes)

    def send(self, plan: Plan, x_rm: Float[Array, "r m"]) -> Float[Array, "p m"]:
        """Returns the rows that this device receives; zeros fill its places up."""
        return self._sent(plan, x_rm, jnp.zeros((self._capacity(x_rm.shape[0]), x_rm.shape[1]), x_rm.dtype))

    def send_numbers(self, plan: Plan, number_r: Int[Array, " r"], none: int) -> Int[Array, " p"]:
        """Returns a number of each received row; `none` for places without a row."""
        in_places = jnp.take(number_r, plan.places.row_p, mode="fill", fill_value=none)
        return self._sent(plan, in_places, jnp.full(self._capacity(number_r.size), none, number_r.dtype))

    def send_back(self, plan: Plan, y_pm: Float[Array, "p m"]) -> Float[Array, "r m"]:
        """Returns the rows that come back, in the places of the array that was sent; zeros for those not sent."""
        assert plan.sizes is not None
        me, sent_nn = jax.lax.axis_index(self.axes), plan.sizes.sent_nn
        output = jnp.zeros((plan.places.row_p.size, y_pm.shape[1]), y_pm.dtype)
        at, back_to = plan.sizes.at_receiver_nn[:, me], plan.sizes.at_sender_nn[:, me]
        return jax.lax.ragged_all_to_all(y_pm, output, at, sent_nn[:, me], back_to, sent_nn[me], axis_name=self.axes)

    def _capacity(self, rows: int) -> int:
        return self.devices * rows if self.buffer is None else math.ceil(self.buffer * rows)

    def _sent(self, plan: Plan, x: Array, output: Array) -> Array:
        assert plan.sizes is not None
        me, sent_nn = jax.lax.axis_index(self.axes), plan.sizes.sent_nn
        at, to = plan.sizes.at_sender_nn[me], plan.sizes.at_receiver_nn[me]
        return jax.lax.ragged_all_to_all(x, output, at, sent_nn[me], to, sent_nn[:, me], axis_name=self.axes)
