"""A scan over the devices of a mesh axis as one program on each of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from parscan_bp.devices import Line, divided
from parscan_bp.types import Array


class OverMesh:
    """A scan over a mesh: one `jax.shard_map`, and another of the steps that it leaves over.

    In that one every device runs the same. Left to XLA's partitioner, programs of such steps were
    divided along with the others, and it ends the process over some, as of a `sort`'s cotangents.

    Args:
      line: the devices.
      mesh: their mesh.
      run: ``n`` -> the scan of a device's own n steps, see `Solver.spread`.
      rest: the same for steps that all devices run.
      length: all steps.
    """

    def __init__(self, line, mesh, run, rest, length):
        self.line, self.mesh = line, mesh
        self.each, self.left = divmod(length, mesh.shape[line.axis])
        self.run: Any = None
        self.rest: Any = None
        if self.each:
            self.run = self._over_mesh(on_each(line, run(self.each)), PartitionSpec(line.axis))
        if self.left:
            self.rest = self._over_mesh(rest(self.left), PartitionSpec())

    def _over_mesh(self, run, steps) -> Any:
        whole, axes = PartitionSpec(), {self.line.axis}
        how = {"mesh": self.mesh, "axis_names": axes, "out_specs": (whole, steps)}
        return jax.jit(jax.shard_map(run, in_specs=(whole, whole, steps), **how))

    def __call__(self, shared, init, xs):
        (shared, init), xs = self._divided((shared, init)), list(xs)
        if self.run is None:
            return self.rest(shared, init, self._divided(xs))
        if self.rest is None:
            return self.run(shared, init, self._divided(xs, leading=True))
        # The scan ends with what is left over, in the order of its steps.
        cut = self.left if self.line.backward else -self.left
        ends = [slice(None, cut), slice(cut, None)]
        first, last = ends[::-1] if self.line.backward else ends
        carry, ys = self.run(shared, init, self._divided([x[first] for x in xs], leading=True))
        carry, others = self.rest(shared, carry, self._divided([x[last] for x in xs]))
        # One array has one sharding, and all steps are no multiple of the devices.
        ys = self._divided(ys)
        parts = (others, ys) if self.line.backward else (ys, others)
        return carry, [jnp.concatenate(pair) for pair in zip(*parts, strict=True)]

    def _divided(self, tree, *, leading=False):
        return divided(tree, self.line.axis, self.mesh, leading=leading)


def on_each(line: Line, run):
    """The scan of all devices' steps, on each of them."""

    def call(shared, init, xs):
        for k, x in enumerate(xs):
            if line.is_typed and not line.varies(x):
                raise ValueError(
                    f"xs: leaf {k} is the same on all devices of {line.axis!r}; the steps of this "
                    f"device alone are wanted, as by in_specs=PartitionSpec({line.axis!r})"
                )
        shared, init, xs = line.varying((shared, init, xs))
        init = [_alone(line, a) for a in init]
        carry, ys = run(shared, init, xs)
        return line.from_last(carry), ys

    return call


def _is_float(a: Array) -> bool:
    return jnp.issubdtype(a.dtype, jnp.inexact)


def _alone(line: Line, a: Array) -> Array:
    """What the first device has; zero on the others, so that no cotangent is of them."""
    return jnp.where(line.is_at(0), a, jnp.zeros_like(a)) if _is_float(a) else a


def joined(line: Line, init: Array, arrived: Array) -> Array:
    """The carry that enters a device: ``init`` is zero where it is not the first one."""
    return init + arrived if _is_float(arrived) else jnp.where(line.is_at(0), init, arrived)
