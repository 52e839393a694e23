"""An exclusive scan of affine maps over devices: the vector that enters each of them.

Device p has the map F_p v = M_p v + b_p of all its steps. What enters it, the first one having
0 before it, is

    v_p = b_{p-1} + M_{p-1} b_{p-2} + ... + M_{p-1} ... M_1 b_0.

Three ways to send that, H being the entries of a vector and |M| the numbers of a map:

    ppermute     ceil(log2 P) exchanges: of M and b, the last of a vector alone
                 (recursive doubling)        (ceil(log2 P) - 1) (|M| + H) + H numbers
    all_gather   one collective              (P - 1) (|M| + H) numbers received
    chain        P - 1 exchanges of vectors  (P - 1) H numbers

Source: Blelloch, "Prefix sums and their applications", 1990, for the scan; BPPSA (Wang, Bai,
Pekhimenko, MLSys 2020), section 3.6, for its place between devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.devices.link import Link, Traffic
from parscan_bp.devices.order import DeviceOrder
from parscan_bp.operators import Operator, compose
from parscan_bp.originals import lax_scan
from parscan_bp.trees import nbytes
from parscan_bp.types import Array

AffineMap = tuple[Operator, Array]
"""(M, b)."""


METHODS: dict[str, Callable[[int, int, int], Traffic]] = {
    "ppermute": lambda p, pair, vector: Traffic(
        _rounds(p), max(_rounds(p) - 1, 0) * pair + min(_rounds(p), 1) * vector
    ),
    "all_gather": lambda p, pair, vector: Traffic(min(p - 1, 1), (p - 1) * pair),
    "chain": lambda p, pair, vector: Traffic(p - 1, (p - 1) * vector),
}
"""The traffic of P devices whose maps take ``pair`` bytes, M and b, and vectors ``vector``."""


def _rounds(p: int) -> int:
    return math.ceil(math.log2(p))


def cheapest(devices: int, maps: AffineMap, link: Link) -> str:
    """The method that a link is done with first.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense
      >>> small, large = ((Dense(jnp.ones((n, n))), jnp.ones(n)) for n in (2, 500))
      >>> link = Link(latency=2e-6, bandwidth=6e9)
      >>> cheapest(8, small, link), cheapest(8, large, link)
      ('all_gather', 'chain')
    """
    pair, vector = nbytes(maps), nbytes(maps[1])
    return min(METHODS, key=lambda name: link.seconds(METHODS[name](devices, pair, vector)))


def exclusive_scan(line: DeviceOrder, maps: AffineMap, method: str) -> Array:
    """v_p on each device of a line, see above; one of the `METHODS`."""
    return {"ppermute": _doubling, "all_gather": _gathered, "chain": _chained}[method](line, maps)


def _push(maps: AffineMap, v: Array) -> Array:
    return maps[0].matvec(v) + maps[1]


def _pair(first: AffineMap, second: AffineMap) -> AffineMap:
    """The two maps as one."""
    return compose(first[0], second[0]), _push(second, first[1])


def _doubling(line: DeviceOrder, maps: AffineMap) -> Array:
    """Of each device: the map of the stretch that ends there, and of one that ends before it."""
    total, before, distance = maps, None, 1
    while 2 * distance < line.size:
        arrived = _sent(total, functools.partial(line.shift, distance=distance))
        # Nothing arrives where the stretch began with the first device: it is whole.
        whole = line.position < distance
        before = arrived if before is None else _where(whole, before, _pair(arrived, before))
        total = _where(whole, total, _pair(arrived, total))
        distance *= 2
    if distance >= line.size:
        return jnp.zeros_like(maps[1])
    arrived = line.shift(total[1], distance)
    if before is None:
        return arrived
    return jnp.where(line.position < distance, before[1], _push(before, arrived))


def _gathered(line: DeviceOrder, maps: AffineMap) -> Array:
    # Not with a new axis, which JAX (0.10 to 0.12) would take for one that is sharded explicitly.
    every = _sent(maps, lambda a: lax.all_gather(a[None], line.axis, tiled=True))
    if line.backward:
        every = jax.tree.map(lambda a: a[::-1], every)

    def step(v, t):
        k, one = t
        return jnp.where(k < line.position, _push(one, v), v), None

    counted = (jnp.arange(line.size - 1), jax.tree.map(lambda a: a[:-1], every))
    return lax_scan(step, jnp.zeros_like(maps[1]), counted)[0]


def _chained(line: DeviceOrder, maps: AffineMap) -> Array:
    v = jnp.zeros_like(maps[1])
    for k in range(line.size - 1):
        v = jnp.where(line.is_at(k + 1), line.hand_on(_push(maps, v), k), v)
    return v


def _where(condition: Array, yes: AffineMap, no: AffineMap) -> AffineMap:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _sent(maps: AffineMap, send: Callable[[Array], Array]) -> AffineMap:
    """Both sent as one array for each dtype and kind of batch axes, which stay where they are."""
    operator, b = maps
    leaves = [*operator.leaves(), (b, 1)]
    groups: dict[tuple, list[int]] = {}
    for k, (leaf, ndim) in enumerate(leaves):
        groups.setdefault((leaf.dtype, leaf.shape[: leaf.ndim - ndim]), []).append(k)
    out: dict[int, Array] = {}
    for (_, batch), members in groups.items():
        flat = [leaves[k][0].reshape(*batch, -1) for k in members]
        # Gathered arrays have one more axis in front.
        sent, at = send(jnp.concatenate(flat, axis=-1)), 0
        front = sent.shape[: sent.ndim - 1 - len(batch)]
        for k, part in zip(members, flat, strict=True):
            own = lax.slice_in_dim(sent, at, at + part.shape[-1], axis=-1)
            out[k] = own.reshape(*front, *leaves[k][0].shape)
            at += part.shape[-1]
    each = iter(range(len(leaves)))
    return operator.map_leaves(lambda *_: out[next(each)]), out[len(leaves) - 1]
