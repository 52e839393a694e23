"""The true Jacobian of a step, entry by entry, and what it has to say about a structure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
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
            return np.full(leaf.shape, seed % 2, leaf.dtype)
        values = rng.normal(size=leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            values = values + 1j * rng.normal(size=leaf.shape)
        return np.asarray(values, leaf.dtype)

    return [draw(leaf) for leaf in jax.tree.leaves(tree)]


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Where J is non-zero at any of the points, from one product per entry of each leaf.

    Attributes:
      body: closed jaxpr of (carry..., xs...).
      leaves: flat carry positions of the leaves to differentiate.
      points: flat arguments of the body, one list per point.
      reverse: by rows, for bodies that have a vjp only.
    """

    body: ClosedJaxpr
    leaves: Sequence[int]
    points: Sequence[Sequence[Any]]
    reverse: bool = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [self.body.in_avals[i].shape for i in self.leaves]

    @property
    def is_empty(self) -> bool:
        return any(0 in shape for shape in self.shapes)

    def nonzero(self, args) -> list[list[Any]]:
        """Of each leaf, for each of its entries, where a product with J is not zero."""
        run = jaxpr_as_fun(self.body)

        def step(moving):
            merged = list(args)
            for i, value in zip(self.leaves, moving, strict=True):
                merged[i] = value
            outs = run(*merged)
            return [outs[i] for i in self.leaves]

        at = [args[i] for i in self.leaves]
        if self.reverse:
            _, pull = jax.vjp(step, at)
            products = [jax.vmap(lambda ct: pull(ct)[0])(basis) for basis in _bases(at)]
        else:
            push = lambda dot: jax.jvp(step, (at,), (dot,))[1]  # noqa: E731
            products = [jax.vmap(push)(basis) for basis in _bases(at)]
        return [[a != 0 for a in answers] for answers in products]

    def support(self, found: Sequence[list[list[Any]]]) -> Support:
        """From `nonzero` of every point."""
        n, shapes = range(len(self.leaves)), self.shapes
        support = [[np.zeros(shapes[o] + shapes[i], bool) for i in n] for o in n]
        for i, o in itertools.product(n, n) if found else ():
            # A complex entry is probed twice, in its real and its imaginary direction.
            parts = [np.asarray(at[i][o]).reshape(-1, *shapes[i], *shapes[o]) for at in found]
            nonzero = np.concatenate(parts).any(0)
            if self.reverse:
                support[i][o] |= nonzero
            else:
                ndim = len(shapes[i])
                support[o][i] |= np.moveaxis(nonzero, range(ndim), range(-ndim, 0))
        return support


def jacobian_supports(questions: Sequence[Question]) -> list[Support]:
    """Of all that have as many points, by one program."""
    asked = [q for q in questions if not q.is_empty]
    program = jax.jit(
        lambda points: [q.nonzero(args) for q, args in zip(asked, points, strict=True)]
    )
    points = zip(*(q.points for q in asked), strict=True)
    answers = zip(*(program(args) for args in points), strict=True)
    found = dict(zip(map(id, asked), answers, strict=True))
    return [q.support(found.get(id(q), ())) for q in questions]


def _bases(leaves):
    for k, leaf in enumerate(leaves):
        units = np.eye(leaf.size).reshape(leaf.size, *leaf.shape)
        if jnp.iscomplexobj(leaf):
            units = np.concatenate([units, 1j * units])
        zeros = [np.zeros((len(units), *other.shape), other.dtype) for other in leaves]
        basis = [units.astype(leaf.dtype) if j == k else z for j, z in enumerate(zeros)]
        yield [jnp.asarray(a) for a in basis]


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
