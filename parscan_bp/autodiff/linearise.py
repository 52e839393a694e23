"""From a step to its transposed Jacobian: by columns, or given; see `by_products`, `of_cell`.

A *linearisation* answers three questions about a stretch of steps: what vector the
carry becomes (`pack`, `unpack`), what operator acts on it (`adjoint_operator`,
`tangent_operator`), and what the parameters and inputs receive (`pullback`). It never
sees a solver.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from parscan_bp.autodiff.active import Active, replace_at
from parscan_bp.autodiff.body import Body, over_steps
from parscan_bp.operators import Dense, Diagonal, Operator
from parscan_bp.trees import CarryLayout
from parscan_bp.types import Array, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Steps:
    """The values at which a stretch of steps is linearised; all but ``consts`` stacked.

    Attributes:
      consts: loop-invariant values of the body.
      carry: the carry that enters each step.
      x: the input of each step.
      new_carry: the carry that leaves each step.
      extra: `Linearisation.invariants`.
    """

    consts: Sequence[Array]
    carry: Sequence[Array]
    x: Sequence[Array]
    new_carry: Sequence[Array]
    extra: PyTree = ()


class Linearisation(abc.ABC):
    """How the Jacobian of a body with respect to its carry is obtained."""

    body: Body

    def pack(self, leaves: Sequence[Array], *, cotangent: bool) -> PyTree:
        """Float carry leaves as the vector that the operators act on."""
        return list(leaves)

    def unpack(self, vector: PyTree, *, cotangent: bool) -> list[Array]:
        """The inverse of `pack`."""
        return vector

    def invariants(self, consts: Sequence[Array], extra: Sequence[Array]) -> PyTree:
        """What the linearisation of every step shares, made once, before any loop.

        Args:
          consts: loop-invariant values of the body.
          extra: values that a given Jacobian closes over.
        """
        return extra

    def restricted(self, carry: tuple[int, ...]) -> Linearisation | None:
        """The same for these carry leaves alone; ``None`` if it knows them all together only."""
        return None

    @abc.abstractmethod
    def adjoint_operator(self, steps: Steps, active: Active | None = None) -> Operator:
        """The stack of transposed Jacobians A_t.

        Args:
          steps: where.
          active: what `pullback` will be asked for; its ``aux`` is what the operator makes for it.
        """

    def tangent_operator(self, steps: Steps) -> Operator:
        """The stack of Jacobians."""
        return self.adjoint_operator(steps).transpose()

    def pullback(
        self,
        steps: Steps,
        new_carry_cts: Sequence[Array],
        y_cts: Sequence[Array],
        active: Active,
        aux: PyTree = None,
    ) -> tuple[PyTree, list[Array]]:
        """Cotangents of the active consts (summed) and of the active inputs (stacked).

        One batched vector-Jacobian product over the stretch: with every lambda known, the
        parameter gradients (BPPSA eq. 2) have no dependency along it.

        Args:
          steps: the stretch.
          new_carry_cts: lambda, for each float leaf of the carry.
          y_cts: cotangents of the active outputs.
          active: what is differentiated.
          aux: what `adjoint_operator` made beside its products, where it was asked.
        """

        def outputs(consts, xs):
            return jax.vmap(
                lambda c, x, xs: self._float_outputs(
                    active.insert_consts(steps.consts, consts), c, active.insert_x(x, xs), active
                ),
            )(list(steps.carry), list(steps.x), xs)

        consts, xs = active.of_consts(steps.consts), active.of_x(steps.x)
        _, vjp = jax.vjp(outputs, consts, xs)
        return vjp((list(new_carry_cts), list(y_cts)))

    def unread(self, active: Active) -> Active:
        """What is differentiated where nothing reads the outputs."""
        return dataclasses.replace(active, y=())

    def const_cotangents(
        self, consts: Sequence[Array], summed: PyTree, active: Active
    ) -> list[Array]:
        """Cotangents of the active consts, from the sum of all that `pullback` returned first."""
        return summed

    def _float_outputs(self, consts, carry, x, active):
        new, y = self.body(consts, carry, x)
        return [new[k] for k in self.body.float_carry], [y[j] for j in active.y]


@dataclasses.dataclass(frozen=True)
class Joined(Linearisation):
    """Base of the linearisations whose operators act on one joined vector.

    Attributes:
      body: the scan body.
      layout: how carry leaves are joined.
    """

    body: Body
    layout: CarryLayout

    def pack(self, leaves, *, cotangent):
        return self.layout.join(leaves, cotangent=cotangent)

    def unpack(self, vector, *, cotangent):
        return self.layout.split(vector, cotangent=cotangent)


@dataclasses.dataclass(frozen=True)
class ByColumns(Joined):
    """An explicit Jacobian from one tangent per column that the structure leaves.

    A step over (B, H) arrays with independent rows takes H tangents, not B*H; an
    elementwise step takes one.

    Attributes:
      diagonal: whether the step is known to be elementwise.
    """

    diagonal: bool = False

    def restricted(self, carry):
        places = [self.body.float_carry.index(k) for k in carry]
        body, layout = self.body.restricted(carry), self.layout.restricted(places)
        return dataclasses.replace(self, body=body, layout=layout)

    def adjoint_operator(self, steps, active=None):
        def one(consts, varying):
            rows = self._rows(consts, varying)
            return Diagonal(rows) if self.diagonal else Dense(rows)

        return stack_of_operators(one, list(steps.consts), [*steps.carry, *steps.x])

    def _rows(self, consts, varying):
        """A_t = J^T: row i holds the derivatives of every output by input i."""
        body, n_carry = self.body, self.body.num_carry
        carry, x = varying[:n_carry], varying[n_carry:]

        def new_carry(floats):
            new, _ = body(consts, replace_at(carry, body.float_carry, floats), x)
            return [new[k] for k in body.float_carry]

        floats = [carry[k] for k in body.float_carry]
        _, push = jax.linearize(new_carry, floats)

        def column(direction):
            direction = jnp.broadcast_to(direction, (*self.layout.batch_shape, direction.size))
            tangents = self.layout.split(direction, cotangent=False)
            # Inside shard_map a tangent varies over the mesh axes of its primal.
            tangents = [t + jnp.zeros_like(c) for t, c in zip(tangents, floats, strict=True)]
            return self.layout.join(push(tangents), cotangent=False)

        size = sum(self.layout.features)
        if self.diagonal:
            return column(jnp.ones(size, self.layout.dtype))
        columns = jax.vmap(column)(jnp.eye(size, dtype=self.layout.dtype))
        return jnp.moveaxis(columns, 0, -2)


@dataclasses.dataclass(frozen=True)
class Given(Joined):
    """A Jacobian that the caller states.

    Attributes:
      jacobian: ``(extra, carry leaves, x leaves, new carry leaves) -> Operator`` for one
        step, acting on the joined carry.
    """

    jacobian: Callable[..., Operator]

    def adjoint_operator(self, steps, active=None):
        n, m = len(steps.carry), len(steps.x)

        def one(extra, v):
            return self.jacobian(extra, v[:n], v[n : n + m], v[n + m :])

        varying = [*steps.carry, *steps.x, *steps.new_carry]
        return stack_of_operators(one, list(steps.extra), varying)


def stack_of_operators(
    one: Callable[..., Operator], fixed: Sequence[Array], stacked: Sequence[Array]
) -> Operator:
    """The operators ``one(fixed, x)`` of every step as one stack.

    A leaf that is the same for all steps stays shared if it has no batch axes.
    """
    operator, varies = over_steps(lambda *step: (one(*step), []), fixed, stacked)
    n, flags = stacked[0].shape[0], iter(varies)

    def scanned(leaf, ndim):
        if next(flags) or leaf.ndim == ndim:
            return leaf
        return jnp.broadcast_to(leaf, (n, *leaf.shape))

    return operator.map_leaves(scanned)
