"""From a step to its transposed Jacobian: matrix-free, by columns, or given; see `of_cell`.

A *linearisation* answers three questions about a stretch of steps: what vector the
carry becomes (`pack`, `unpack`), what operator acts on it (`adjoint_operator`,
`tangent_operator`), and what the parameters and inputs receive (`pullback`). It never
sees a solver.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from parscan_bp.autodiff.body import Body, over_steps
from parscan_bp.autodiff.fold import fold
from parscan_bp.operators import Dense, Diagonal, MatrixFree, Operator
from parscan_bp.trees import CarryLayout, Grouped
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

    @abc.abstractmethod
    def adjoint_operator(self, steps: Steps) -> Operator:
        """The stack of transposed Jacobians A_t."""

    def tangent_operator(self, steps: Steps) -> Operator:
        """The stack of Jacobians."""
        return self.adjoint_operator(steps).transpose()

    def pullback(
        self,
        steps: Steps,
        new_carry_cts: Sequence[Array],
        y_cts: Sequence[Array],
        active: Active,
    ) -> tuple[PyTree, list[Array]]:
        """Cotangents of the active consts (summed) and of the active inputs (stacked).

        One batched vector-Jacobian product over the stretch: with every lambda known, the
        parameter gradients (BPPSA eq. 2) have no dependency along it.
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

    def const_cotangents(
        self, consts: Sequence[Array], summed: PyTree, active: Active
    ) -> list[Array]:
        """Cotangents of the active consts, from the sum of all that `pullback` returned first."""
        return summed

    def _float_outputs(self, consts, carry, x, active):
        new, y = self.body(consts, carry, x)
        return [new[k] for k in self.body.float_carry], [y[j] for j in active.y]


@dataclasses.dataclass(frozen=True)
class Active:
    """Which consts, inputs and outputs take part in differentiation, by position."""

    consts: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]

    def of_consts(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.consts]

    def of_x(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.x]

    def insert_consts(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.consts, active)

    def insert_x(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.x, active)


def replace_at(values: Sequence[Any], index: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """``values`` with the entries at ``index`` replaced."""
    out = list(values)
    for k, v in zip(index, new, strict=True):
        out[k] = v
    return out


@dataclasses.dataclass(frozen=True)
class ByProducts(Linearisation):
    """Matrix-free: the linear map of each step as JAX's linearisation gives it.

    The elementwise derivatives of a stretch are evaluated as one batch; what is left for
    the sequential loop is their product with a vector.
    """

    body: Body

    # Most bytes of a leaf that is carried beside its like. Measured on elementwise steps: for
    # larger ones the copy costs more than it saves.
    small_cotangent: ClassVar[int] = 2**9
    small_tangent: ClassVar[int] = 2**9

    def _grouped(self, *, cotangent: bool) -> Grouped:
        avals = [self.body.carry_avals[k] for k in self.body.float_carry]
        most = self.small_cotangent if cotangent else self.small_tangent
        return Grouped(tuple(a.shape for a in avals), tuple(a.dtype for a in avals), most)

    def pack(self, leaves, *, cotangent):
        return self._grouped(cotangent=cotangent).join(leaves)

    def unpack(self, vector, *, cotangent):
        return self._grouped(cotangent=cotangent).split(vector)

    def adjoint_operator(self, steps):
        return self._operator(steps, transposed=True)

    def tangent_operator(self, steps):
        return self._operator(steps, transposed=False)

    def _operator(self, steps, transposed):
        floats = [steps.carry[k] for k in self.body.float_carry]
        shapes = jax.eval_shape(lambda t: [a[0] for a in t], floats)
        grouped = self._grouped(cotangent=transposed)

        def one(fixed, values):
            (consts, extra), (carry, x, new_carry) = fixed, values
            step = Steps(consts, carry, x, new_carry, extra)
            apply = self._map(step, shapes, transposed)
            known, tree = jax.tree.flatten(apply)
            closed = jax.make_jaxpr(lambda known, v: jax.tree.unflatten(tree, known)(v))(
                known, shapes
            )
            folded = fold(closed, known, shapes, jax.tree.structure(shapes))
            return Partial(_on_groups(grouped), folded)

        stacked = (list(steps.carry), list(steps.x), list(steps.new_carry))
        linear, flags = over_steps(one, (list(steps.consts), steps.extra), stacked)
        vector = jax.eval_shape(grouped.join, shapes)
        return MatrixFree(linear, flags, vector, codomain=vector)

    def _map(self, step: Steps, shapes, transposed) -> Callable:
        """J v of one step, or its transpose; known values are leaves of the function."""
        body, carry = self.body, list(step.carry)
        static = body.float_carry

        def new_carry(floats):
            new, _ = body(step.consts, replace_at(carry, static, floats), step.x)
            return [new[k] for k in static]

        push = jax.linearize(new_carry, [carry[k] for k in static])[1]
        return Partial(transpose_of(shapes), push) if transposed else push


def _on_groups(grouped: Grouped):
    """(linear, v) -> linear(v) for a linear function of leaves and v grouped ones."""
    return lambda linear, v: grouped.join(linear(grouped.split(v)))


def transpose_of(shapes):
    """(linear, v) -> linear^T v for a linear function of values of these shapes."""
    return lambda linear, v: jax.linear_transpose(linear, shapes)(v)[0]


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

    def adjoint_operator(self, steps):
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

    def adjoint_operator(self, steps):
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
    operator, varies = over_steps(one, fixed, stacked)
    n, flags = stacked[0].shape[0], iter(varies)

    def scanned(leaf, ndim):
        if next(flags) or leaf.ndim == ndim:
            return leaf
        return jnp.broadcast_to(leaf, (n, *leaf.shape))

    return operator.map_leaves(scanned)
