"""The devices of a mesh axis as a line along which a scan goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.trees import largest
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class DeviceOrder:
    """The devices of an axis, one after the other; inside `jax.shard_map` or `jax.pmap`.

    Attributes:
      axis: name of the mesh axis.
      backward: whether the last device of the axis comes first.
    """

    axis: str
    backward: bool = False

    @property
    def size(self) -> int:
        """P, the number of devices."""
        return lax.axis_size(self.axis)

    @property
    def position(self) -> Array:
        """0 on the device that comes first."""
        index = lax.axis_index(self.axis)
        return self.size - 1 - index if self.backward else index

    def is_at(self, position: int | Array) -> Array:
        return self.position == position

    def shift(self, tree: PyTree, distance: int = 1) -> PyTree:
        """What the device ``distance`` before this one has; zeros where there is none.

        One exchange (collective permute) for each leaf.
        """
        pairs = [(k, k + distance) for k in range(self.size - distance)]
        return self._exchanged(tree, pairs)

    def hand_on(self, tree: PyTree, position: int) -> PyTree:
        """What the device at a position has, on the next one; zeros on all others."""
        return self._exchanged(tree, [(position, position + 1)])

    def _exchanged(self, tree: PyTree, pairs: list[tuple[int, int]]) -> PyTree:
        if self.backward:
            last = self.size - 1
            pairs = [(last - a, last - b) for a, b in pairs]
        return _on_numbers(lambda a: lax.ppermute(a, self.axis, pairs), tree)

    def from_first(self, tree: PyTree) -> PyTree:
        """What the first device has, on all: one all-reduce for each leaf, of zeros otherwise."""
        return self._from(0, tree)

    def from_last(self, tree: PyTree) -> PyTree:
        """What the last device has, on all; likewise."""
        return self._from(self.size - 1, tree)

    def _from(self, position: int, tree: PyTree) -> PyTree:
        here = self.is_at(position)
        alone = lambda a: jnp.where(here, a, jnp.zeros_like(a))  # noqa: E731
        return _on_numbers(lambda a: lax.psum(alone(a), self.axis), tree)

    def any(self, flag: Array) -> Array:
        """Whether a flag is set on any device: one all-reduce."""
        return lax.pmax(flag.astype(jnp.int32), self.axis) > 0

    def largest(self, value: Array) -> Array:
        """The largest of a number that each device has, NaN if one is: one all-gather."""
        return largest(lax.all_gather(value, self.axis))

    def is_among(self, n: int, missing: int) -> Array:
        """Whether each of a device's n steps is one, where so many at the very end are none."""
        return self.position * n + jnp.arange(n) < self.size * n - missing

    def varying(self, tree: PyTree) -> PyTree:
        """The same values; to the types of `jax.shard_map` they differ from device to device.

        So their cotangents are summed over the devices once, where this stands.
        """

        def vary(a):
            return a if self.varies(a) else lax.pcast(a, self.axis, to="varying")

        return jax.tree.map(vary, tree) if self.is_typed else tree

    def numbers(self, tree: PyTree) -> PyTree:
        """Keys as their data, all that they are, of types that vary; see `with_keys`."""
        return self.varying(
            jax.tree.map(lambda a: jax.random.key_data(a) if _is_key(a) else a, tree)
        )

    def varies(self, a: Array) -> bool:
        """Whether the type of an array says that it differs from device to device."""
        return self.axis in jax.typeof(a).manual_axis_type.varying

    @property
    def is_typed(self) -> bool:
        """Whether types say what differs: not in `jax.pmap`, nor with ``check_vma=False``."""
        return self.varies(lax.axis_index(self.axis))


def kinds_of_keys(tree: PyTree) -> PyTree:
    """Of each leaf the implementation of its keys, or "" if it is none."""
    return jax.tree.map(lambda a: jax.random.key_impl(a) if _is_key(a) else "", tree)


def with_keys(tree: PyTree, kinds: PyTree) -> PyTree:
    """Keys of their data; the inverse of `DeviceOrder.numbers`, by what `kinds_of_keys` told."""

    def leaf(a, kind):
        return a if kind == "" else jax.random.wrap_key_data(a, impl=kind)

    return jax.tree.map(leaf, tree, kinds)


def _is_key(a: Array) -> bool:
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


def _on_numbers(f: Callable[[Array], Array], tree: PyTree) -> PyTree:
    """``f`` of all leaves as numbers: keys as their data, flags as small integers."""

    def on_leaf(a):
        if _is_key(a):
            return jax.random.wrap_key_data(f(jax.random.key_data(a)), impl=jax.random.key_impl(a))
        if a.dtype == bool:
            return f(a.astype(jnp.int8)).astype(bool)
        return f(a)

    return jax.tree.map(on_leaf, tree)
