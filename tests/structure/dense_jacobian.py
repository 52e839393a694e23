"""The true Jacobian of a step, entry by entry, and what it has to say about a structure."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from zoo_case import Case

from parscan_bp.structure import CarryStructure

Support = list[list[np.ndarray]]
"""`support[o][i]`: where J is non-zero, of shape (*shape of leaf o, *shape of leaf i)."""


def trace(case: Case):
    """The body's jaxpr and its number of carry leaves."""
    return jax.make_jaxpr(case.step)(case.carry, case.x), len(jax.tree.leaves(case.carry))


def random_like(tree, seed: int) -> list:
    """Flat concrete arrays; consecutive seeds take both values of a boolean."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed)
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.full(leaf.shape, seed % 2, leaf.dtype)
        values = rng.normal(size=leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            values = values + 1j * rng.normal(size=leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return [draw(leaf) for leaf in jax.tree.leaves(tree)]


def jacobian_support(body, leaves, points, reverse=False) -> Support:
    """Where J is non-zero at any of the points, from one product per entry of each leaf.

    Args:
      body: closed jaxpr of (carry..., xs...).
      leaves: flat carry positions of the leaves to differentiate.
      points: flat arguments of the body, one list per point.
      reverse: by rows, for bodies that have a vjp only.
    """
    run = jaxpr_as_fun(body)
    shapes = [body.in_avals[i].shape for i in leaves]

    @jax.jit
    def blocks(args):
        def step(moving):
            merged = list(args)
            for i, value in zip(leaves, moving, strict=True):
                merged[i] = value
            outs = run(*merged)
            return [outs[i] for i in leaves]

        at = [args[i] for i in leaves]
        if reverse:
            _, pull = jax.vjp(step, at)
            return [jax.vmap(lambda ct: pull(ct)[0])(basis) for basis in _bases(at)]
        return [
            jax.vmap(lambda dot: jax.jvp(step, (at,), (dot,))[1])(basis) for basis in _bases(at)
        ]

    n = len(leaves)
    support = [[np.zeros(shapes[o] + shapes[i], bool) for i in range(n)] for o in range(n)]
    for args in points if all(block.size for row in support for block in row) else ():
        for i, answers in enumerate(blocks(args)):
            for o, answer in enumerate(answers):
                # A complex entry is probed twice, in its real and its imaginary direction.
                nonzero = np.asarray(answer != 0).reshape(-1, *shapes[i], *shapes[o]).any(0)
                block = np.moveaxis(nonzero, range(len(shapes[i])), range(-len(shapes[i]), 0))
                if reverse:
                    support[i][o] |= nonzero
                else:
                    support[o][i] |= block
    return support


def _bases(leaves):
    for k, leaf in enumerate(leaves):
        units = np.eye(leaf.size).reshape(leaf.size, *leaf.shape)
        if jnp.iscomplexobj(leaf):
            units = np.concatenate([units, 1j * units])
        zeros = [jnp.zeros((len(units), *other.shape), other.dtype) for other in leaves]
        yield [jnp.asarray(units, leaf.dtype) if j == k else z for j, z in enumerate(zeros)]


def along_axes(support: Support, axes: tuple[int, ...]) -> bool:
    """Is J zero wherever the index along axes[o] of leaf o is not that along axes[i] of leaf i?"""
    return all(
        (where[axes[o]] == where[block.ndim - support[i][i].ndim // 2 + axes[i]]).all()
        for o, row in enumerate(support)
        for i, block in enumerate(row)
        for where in [np.argwhere(block).T]
    )


def is_diagonal(support: Support) -> bool:
    def entrywise(block):
        where = np.argwhere(block).T
        half = block.ndim // 2
        return all((where[a] == where[half + a]).all() for a in range(half))

    return all(
        entrywise(block) if o == i else not block.any()
        for o, row in enumerate(support)
        for i, block in enumerate(row)
    )


def assert_claims_hold(structure: CarryStructure, support: Support) -> None:
    """No promise of the structure is broken by an entry of the Jacobian."""
    for o, row in enumerate(structure.depends):
        for i, may in enumerate(row):
            assert may or not support[o][i].any(), f"leaf {o} depends on leaf {i}"
    assert len({len(axes) for axes in structure.batch_axes}) <= 1
    for k, size in enumerate(structure.batch_shape):
        axes = tuple(axes[k] for axes in structure.batch_axes)
        assert all(block[0].shape[a] == size for block, a in zip(support, axes, strict=True))
        assert along_axes(support, axes), f"batch axis {axes}"
    assert not structure.diagonal or is_diagonal(support)
