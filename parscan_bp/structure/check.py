"""The debug check: random probes of a step's Jacobian against what is claimed of its structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.read import walk
from parscan_bp.structure.base import CarryStructure

Leaves = list[np.ndarray]


def check_structure(
    body: ClosedJaxpr,
    structure: CarryStructure,
    consts: Any,
    carry: Any,
    x: Any,
    key: jax.Array,
    probes: int = 3,
) -> None:
    """Evaluates Jacobian products of a step and raises if one contradicts `structure`.

    A probe is a random tangent of the carry that is zero where the structure promises not to look:
    outside a random half of the indices along a batch axis, outside a random half of the entries
    for a diagonal, in all leaves but one for `depends`. The tangent of carry' must then be exactly
    zero where the promise says so. Each half is followed by its complement. A step with a
    `custom_vjp` inside has no tangents: cotangents are probed instead, the other way round.

    This is a test at one point: it can refute a structure, never prove one.

    Args:
      body: the scan body, as in `find_structure`.
      structure: what is claimed, from `find_structure` or from the caller.
      consts, carry, x: concrete flat arrays (or pytrees of them), one time slice of x.
      key: random key of the probes.
      probes: how many of each kind.

    Raises:
      ValueError: a claim is wrong; names the leaf, the entry and its value.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.structure import find_structure
      >>> h = jnp.arange(6.0).reshape(2, 3)
      >>> body = jax.make_jaxpr(lambda h, x: jnp.sin(h) * x)(h, h)
      >>> check_structure(body, find_structure(body, 0, 1), (), h, h, jax.random.key(0))
    """
    push, reverse = _products(body, structure, consts, carry, x)
    leaves = [np.asarray(jax.tree.leaves(carry)[i]) for i in structure.float_carry]
    depends = np.array(structure.depends, bool).reshape(len(leaves), len(leaves))
    reaches = depends if reverse else depends.T  # reaches[probed leaf, answering leaf]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())

    def probe(masks: Leaves, forbidden: Leaves, claim: str) -> None:
        tangents = [_random(rng, leaf) * mask for leaf, mask in zip(leaves, masks, strict=True)]
        answers = push([t.astype(leaf.dtype) for t, leaf in zip(tangents, leaves, strict=True)])
        for i, answer, zero in zip(structure.float_carry, answers, forbidden, strict=True):
            wrong = np.argwhere((np.asarray(answer) != 0) & zero)
            if wrong.size:
                entry = tuple(int(k) for k in wrong[0])
                side = "cotangent" if reverse else "tangent"
                raise ValueError(
                    f"structure: {claim} does not hold. Carry leaf {i}, entry {entry}: the {side} "
                    f"is {np.asarray(answer)[entry]}, it must be 0 ({len(wrong)} such entries)."
                )

    for _ in range(probes):
        for source, name in enumerate(structure.float_carry):
            masks = [np.full(leaf.shape, k == source) for k, leaf in enumerate(leaves)]
            silent = [np.full(o.shape, not r) for o, r in zip(leaves, reaches[source], strict=True)]
            part = "carry'" if reverse else "carry"
            probe(masks, silent, f"independence of leaf {name} of {part}")
        for k, size in enumerate(structure.batch_shape):
            half = _half(rng, size)
            for chosen in (half, ~half):
                axes = [axes[k] for axes in structure.batch_axes]
                masks = [_along(leaf, a, chosen) for leaf, a in zip(leaves, axes, strict=True)]
                probe(masks, [~mask for mask in masks], f"batch axis {k} (axes {axes})")
        if structure.diagonal:
            halves = [_half(rng, leaf.size).reshape(leaf.shape) for leaf in leaves]
            for masks in (halves, [~mask for mask in halves]):
                probe(masks, [~mask for mask in masks], "the diagonal")


def _products(
    body: ClosedJaxpr, structure: CarryStructure, consts: Any, carry: Any, x: Any
) -> tuple[Callable[[Leaves], Sequence[jax.Array]], bool]:
    """Products with J, or with its transpose (then True) if the step has a reverse rule only."""
    fixed = jax.tree.leaves(consts)
    values = [*fixed, *jax.tree.leaves(carry), *jax.tree.leaves(x)]
    if len(values) != len(body.in_avals):
        raise ValueError(
            f"consts, carry, x: got {len(values)} arrays for a body of {len(body.in_avals)} inputs."
        )
    places = [len(fixed) + i for i in structure.float_carry]
    run = jaxpr_as_fun(body)

    def step(moving: Sequence[Any]) -> list[Any]:
        merged = list(values)
        for place, value in zip(places, moving, strict=True):
            merged[place] = value
        outs = run(*merged)
        return [outs[i] for i in structure.float_carry]

    point = [jax.numpy.asarray(values[place]) for place in places]
    if any(kind_of(eqn) == "custom_vjp_call" for eqn in walk(body.jaxpr)):
        return jax.jit(lambda ct: jax.vjp(step, point)[1](ct)[0]), True
    return jax.jit(lambda dot: jax.jvp(step, (point,), (dot,))[1]), False


def _random(rng: np.random.Generator, leaf: np.ndarray) -> np.ndarray:
    """Away from zero, so that a product is zero only where the Jacobian is."""
    values = rng.uniform(0.5, 1.5, leaf.shape) * rng.choice([-1.0, 1.0], leaf.shape)
    if np.iscomplexobj(leaf):
        return values + 1j * rng.uniform(0.5, 1.5, leaf.shape)
    return values


def _half(rng: np.random.Generator, size: int) -> np.ndarray:
    """A random mask with half of its entries set."""
    return rng.permutation(size) < size // 2


def _along(leaf: np.ndarray, axis: int, chosen: np.ndarray) -> np.ndarray:
    """The mask of a leaf's shape that varies along one axis only."""
    shape = [1] * leaf.ndim
    shape[axis] = -1
    return np.broadcast_to(chosen.reshape(shape), leaf.shape)
