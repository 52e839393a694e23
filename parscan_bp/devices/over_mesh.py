"""A scan, or a chain, over the devices of a mesh axis."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from parscan_bp.devices.exclusive import METHODS
from parscan_bp.devices.in_turn import in_turn
from parscan_bp.devices.link import Link, Traffic, as_link
from parscan_bp.devices.mesh import divided as spread_over
from parscan_bp.devices.mesh import find_mesh, is_bound, undivided
from parscan_bp.devices.order import DeviceOrder
from parscan_bp.devices.place import Place, RunSteps
from parscan_bp.jaxprs.read import communicates_over
from parscan_bp.types import Array

TRAFFIC: dict[str, Callable[[int, int, int], Traffic]] = {
    **METHODS,
    "turns": METHODS["chain"],
    # With one round; each is a vector, and a flag from all.
    "corrections": lambda p, pair, vector: Traffic(4, 2 * (vector + 4)) if p > 1 else Traffic(0, 0),
}
"""What each method of `parscan_bp.Sharded` sends backward, as of `METHODS`."""


@dataclasses.dataclass(frozen=True)
class OverMesh(Place):
    """The steps divided over the devices of an axis, each of which has a stretch.

    Attributes:
      axis: name of the mesh axis.
      mesh: the mesh; ``None`` takes that of the arguments, or else that of `jax.set_mesh`.
      method: how maps go from device to device, as of `parscan_bp.Sharded`.
      link: what "auto" takes the network for; ``None`` is the `known_link`.
    """

    axis: str
    mesh: Any = None
    method: str = "auto"
    link: Link | None = None

    @property
    def has_all_steps(self):
        return not is_bound(self.axis)

    def count(self, tree):
        if is_bound(self.axis):
            return DeviceOrder(self.axis).size
        return find_mesh(self.axis, self.mesh, tree).shape[self.axis]

    def line(self, *, reverse):
        return DeviceOrder(self.axis, reverse)

    def obstacle(self, jaxpr):
        name = communicates_over(jaxpr, self.axis)
        if name is None:
            return None
        return (
            f"the step contains {name} over {self.axis!r}, the axis over which it divides the "
            "steps: devices are at different steps, and would wait for one another"
        )

    def traced_as(self, init, xs):
        if is_bound(self.axis):
            return DeviceOrder(self.axis).varying(init), xs
        find_mesh(self.axis, self.mesh, (init, xs))  # before the step is traced, if there is none
        return init, undivided(xs, self.axis)

    def placed(self, loop, *, reverse):
        line = self.line(reverse=reverse)

        def run(consts, init, xs):
            each = lambda carry: loop(consts, carry, xs)  # noqa: E731
            return in_turn(line, each, init, lambda _, arrived: arrived)

        return run

    def entering(self, init, after, *, reverse):
        line, end = DeviceOrder(self.axis, reverse), 0 if reverse else -1
        arrived = line.shift([a[end] for a in after])
        return [_joined(line, own, other) for own, other in zip(init, arrived, strict=True)]

    def spread(self, run, rest, length, *, reverse):
        line = DeviceOrder(self.axis, reverse)
        if is_bound(self.axis):
            return _typed(line, run(length))

        @functools.cache
        def over(mesh):
            return _Spread(line, mesh, run, rest, length)

        def call(shared, init, xs):
            mesh = find_mesh(self.axis, self.mesh, (xs, init, shared))
            return over(mesh)(shared, init, xs)

        return call

    def on_each(self, f, whole, divided):
        line = DeviceOrder(self.axis)
        if is_bound(self.axis):
            part = lambda a: lax.dynamic_index_in_dim(a, line.position)  # noqa: E731
            return f(line.position, whole, jax.tree.map(part, divided))
        mesh = find_mesh(self.axis, self.mesh, (whole, divided))
        whole = spread_over(whole, self.axis, mesh, leading=False)
        divided = spread_over(divided, self.axis, mesh, leading=True)
        how = {"mesh": mesh, "axis_names": {self.axis}, "out_specs": PartitionSpec()}
        specs = (PartitionSpec(), PartitionSpec(self.axis))
        call = lambda whole, divided: f(line.position, whole, divided)  # noqa: E731
        return jax.jit(jax.shard_map(call, in_specs=specs, **how))(whole, divided)

    def traffic(self, pair, vector, length):
        devices = self.count(())
        if length < devices:
            return {}  # all devices run all steps
        sent = {name: of(devices, pair, vector) for name, of in TRAFFIC.items()}
        turns, chosen = sent["turns"], sent.get(self.method)
        if chosen is None:
            chosen = min((sent[name] for name in METHODS), key=as_link(self.link).seconds)
        entering = Traffic(1, vector) if devices > 1 else Traffic(0, 0)
        return {"forward": turns, "what enters each": entering, "backward": chosen}


class _Spread:
    """A scan over a mesh: one `jax.shard_map`, and another of the steps that it leaves over.

    In that one every device runs the same. Left to XLA's partitioner, programs of such steps were
    divided along with the others, and it ends the process over some, as of a `sort`'s cotangents.

    Args:
      line: the devices.
      mesh: their mesh.
      run: ``n`` -> the scan of a device's own n steps, see `Place.spread`.
      rest: the same for steps that all devices run.
      length: all steps.
    """

    def __init__(self, line, mesh, run, rest, length):
        self.line, self.mesh = line, mesh
        self.each, self.left = divmod(length, mesh.shape[line.axis])
        self.run: Any = None
        self.rest: Any = None
        if self.each:
            self.run = self._over_mesh(_typed(line, run(self.each)), PartitionSpec(line.axis))
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
        return spread_over(tree, self.line.axis, self.mesh, leading=leading)


def _typed(line: DeviceOrder, run: RunSteps) -> RunSteps:
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


def _alone(line: DeviceOrder, a: Array) -> Array:
    """What the first device has; zero on the others, so that no cotangent is of them."""
    return jnp.where(line.is_at(0), a, jnp.zeros_like(a)) if _is_float(a) else a


def _joined(line: DeviceOrder, init: Array, arrived: Array) -> Array:
    """The carry that enters a device: ``init`` is zero where it is not the first one."""
    return init + arrived if _is_float(arrived) else jnp.where(line.is_at(0), init, arrived)
