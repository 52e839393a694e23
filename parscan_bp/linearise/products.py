"""From a step to its transposed Jacobian without forming it: for the sequential sweep."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from parscan_bp.cpu.grouped import Grouped
from parscan_bp.jaxprs.min_cut import Cut
from parscan_bp.linearise.active import Active
from parscan_bp.linearise.ahead import are_multiples, distinct_results, made_ahead
from parscan_bp.linearise.base import Kind, Linearisation, Steps
from parscan_bp.linearise.body import Body, Known, PerStep, first_of, over_steps
from parscan_bp.linearise.completed import Completed, of_fewest
from parscan_bp.linearise.inlets import Distinct, Inlets
from parscan_bp.operators import MatrixFree
from parscan_bp.trees import nbytes, replace_at, stretch
from parscan_bp.types import Array, PyTree

NOTHING = Active((), (), ())


@dataclasses.dataclass(frozen=True)
class Product:
    """The product of one step's map with a vector, which also makes aux on its way.

    Attributes:
      linear: ``v -> (A v, aux)``.
      known: values that it would make and that are stored already.
      aux_apart: see `MatrixFree`.
    """

    linear: Partial
    known: Known = ()
    aux_apart: bool = False

    @classmethod
    def of(cls, linear: Partial, shapes, known: Known = ()) -> Product:
        """Aux that is multiples of the vector, but more numbers, is not stored by the loop.

        Args:
          linear: a result of `made_ahead`, of one vector to its product, and aux.
          shapes: of the leaves of the vector.
          known: see `Product`.
        """
        numbers = _numbers(distinct_results(linear, len(shapes)))
        apart = numbers > _numbers(shapes) and are_multiples(linear, len(shapes))
        return cls(linear, known, apart)


@dataclasses.dataclass(frozen=True)
class ByProducts(Linearisation):
    """Matrix-free: the linear map of each step as JAX's linearisation gives it.

    The elementwise derivatives of a stretch are evaluated as one batch; what is left for
    the sequential loop is their product with a vector. The cotangents of the step's inlets,
    which that product makes on its way, are kept for the pullback unless they are too many.
    """

    kind: ClassVar[Kind] = "matrix-free"
    is_products = True
    can_keep = True

    body: Body

    # Most bytes of a leaf that is carried beside its like. Measured on elementwise steps: for
    # larger ones the copy costs more than it saves.
    small_cotangent: ClassVar[int] = 2**9
    small_tangent: ClassVar[int] = 2**9
    # Most numbers that a step hands to the pullback, as a multiple of those it carries.
    most_aux: ClassVar[int] = 2

    def restricted(self, carry):
        return dataclasses.replace(self, body=self.body.restricted(carry))

    def _grouped(self, *, cotangent: bool) -> Grouped:
        avals = [self.body.carry_avals[k] for k in self.body.float_carry]
        most = self.small_cotangent if cotangent else self.small_tangent
        return Grouped(tuple(a.shape for a in avals), tuple(a.dtype for a in avals), most)

    def pack(self, leaves, *, cotangent):
        return self._grouped(cotangent=cotangent).join(leaves)

    def unpack(self, vector, *, cotangent):
        return self._grouped(cotangent=cotangent).split(vector)

    def adjoint_operator(self, steps, active=None):
        return self._operator(steps, type(self)._pulled, active, cotangent=True)

    def tangent_operator(self, steps):
        return self._operator(steps, type(self)._pushed, None, cotangent=False)

    def keeping(self, step: Steps, active: Active, at_once: Callable[..., bool]) -> Keeping:
        """What a forward pass keeps of each step, and how `adjoint_operator` follows from it.

        Nothing where that is mere arithmetic on the carries, which are kept anyway.

        Args:
          step: one step, without an axis of steps.
          active: see `adjoint_operator`.
          at_once: see `Cut.of`; it takes the bytes that are carried, and summed over steps, too.
        """
        shapes = self._shapes(step.carry)
        one = self._map(type(self)._pulled_beside_step, active, cotangent=True)
        steps = of_fewest(PerStep.of(one, *_fixed_and_stacked(step)))
        vector = jax.eval_shape(self._grouped(cotangent=True).join, shapes)
        sums = nbytes(active.of_consts(step.consts))
        cut = steps.cut(functools.partial(at_once, carried=nbytes(shapes), sums=sums))
        return Keeping(active, steps, cut, vector)

    def pullback(self, steps, new_carry_cts, y_cts, active, aux=None):
        if aux is None:
            return super().pullback(steps, new_carry_cts, y_cts, active)
        return self._pull(active)(steps, aux)

    @functools.cached_property
    def _pull(self) -> Callable[[Active], Callable]:
        """The pullback from the cotangents of the inlets; see `_map`."""
        return functools.cache(self._make_pull)

    def _make_pull(self, active):
        inlets = Inlets(self.body, active)

        @functools.partial(jax.jit, inline=True)
        def pull(steps, aux):
            carry, x = list(steps.carry), list(steps.x)
            # Not `lax.stop_gradient`: the pullback is differentiated itself, for second
            # derivatives.
            known = jax.vmap(functools.partial(inlets.values, steps.consts))(carry, x)

            def values(consts, xs):
                def one(carry, x, xs, known):
                    full = active.insert_consts(steps.consts, consts)
                    return inlets.values(full, carry, active.insert_x(x, xs), known)

                return jax.vmap(one)(carry, x, xs, known)

            consts, xs = active.of_consts(steps.consts), active.of_x(steps.x)
            return jax.vjp(values, consts, xs)[1](aux.all())

        return pull

    @functools.cached_property
    def _map(self) -> Callable[..., Any]:
        """``product(self, step, shapes, active)`` as `over_steps` takes it.

        A vector and aux of a vector; always the same function, so that JAX keeps its trace.
        """
        return functools.cache(self._make_map)

    def _make_map(self, product, active, *, cotangent):
        grouped = self._grouped(cotangent=cotangent)

        @jax.jit
        def one(fixed, values):
            (consts, extra), (carry, x, new_carry) = fixed, values
            step = Steps(consts, carry, x, new_carry, extra)
            made = product(self, step, self._shapes(carry), active)
            return Partial(_OnGroups(grouped, made.aux_apart), made.linear), made.known

        return one

    def _shapes(self, carry: Sequence[Array]):
        return jax.eval_shape(lambda: [carry[k] for k in self.body.float_carry])

    def _operator(self, steps: Steps, product, active, *, cotangent: bool) -> MatrixFree:
        """The stack of the maps ``product(self, step, shapes, active)``."""
        one = self._map(product, active, cotangent=cotangent)
        fixed, stacked = _fixed_and_stacked(steps)
        linear, flags = over_steps(one, fixed, stacked, of_fewest)
        shapes = first_of([steps.carry[k] for k in self.body.float_carry])
        vector = jax.eval_shape(self._grouped(cotangent=cotangent).join, shapes)
        return _matrix_free(linear, flags, vector)

    def _pushed(self, step: Steps, shapes, active: None) -> Product:
        """``v -> (J v, None)`` for one step."""
        floats = [step.carry[k] for k in self.body.float_carry]

        def new_carry(floats):
            carry = replace_at(step.carry, self.body.float_carry, floats)
            new, _ = self.body(step.consts, carry, step.x)
            return [new[k] for k in self.body.float_carry]

        new, push = jax.linearize(new_carry, floats)
        return Product(made_ahead(Partial(_without_aux, push), shapes), self._known(step, new))

    def _pulled(self, step: Steps, shapes, active: Active | None) -> Product:
        """``v -> (J^T v, aux)`` for one step."""
        if active is not None and not active.y:
            pulled = self._pulled_at(Inlets(self.body, active), step, shapes)
            aux = distinct_results(pulled.linear, len(shapes))
            if _numbers(aux) <= self.most_aux * _numbers(shapes):
                return dataclasses.replace(pulled, linear=Partial(_distinct_aux, pulled.linear))
        pulled = self._pulled_at(Inlets(self.body, NOTHING), step, shapes)
        return Product(Partial(_drop_aux, pulled.linear), pulled.known)

    def _pulled_beside_step(self, step: Steps, shapes, active: Active | None) -> Product:
        """`_pulled`, where the body itself is evaluated at the same place."""
        return self._pulled(step, shapes, active)

    def _pulled_at(self, inlets: Inlets, step: Steps, shapes) -> Product:
        """``v -> (J^T v, cotangents of the inlets)``."""
        floats = [step.carry[k] for k in self.body.float_carry]
        values = jax.eval_shape(inlets.values, step.consts, step.carry, step.x)
        zeros = [jnp.zeros_like(a) for a in values]

        def new_carry(floats, added):
            carry, each = replace_at(step.carry, self.body.float_carry, floats), iter(added)
            return inlets.new_carry(step.consts, carry, step.x, lambda v: lax.add(v, next(each)))

        new, push = jax.linearize(new_carry, floats, zeros)
        pulled = made_ahead(Partial(_transpose_of((shapes, zeros)), push), shapes)
        return Product.of(pulled, shapes, self._known(step, new))

    def _known(self, step: Steps, new: Sequence[Array]) -> Known:
        """The new carry was stored: what follows from it alone is not made again."""
        return [(v, step.new_carry[k]) for v, k in zip(new, self.body.float_carry, strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class Keeping:
    """The transposed Jacobian of a step in two parts, of which what the first makes is kept.

    Attributes:
      active: what is differentiated: the aux that the maps make depend on it.
      steps: the map of a step.
      cut: its two parts.
      vector: what the maps take and return.
    """

    active: Active
    steps: PerStep
    cut: Cut
    vector: PyTree

    def of_step(self, step: Steps) -> list[Array]:
        """What is kept of a step."""
        return self.cut.make(jax.tree.leaves(_fixed_and_stacked(step)))

    def operator(self, steps: Steps, kept: Sequence[Array]) -> MatrixFree:
        """The stack of maps of a stretch, from what was kept of its steps."""
        fixed, stacked = _fixed_and_stacked(steps)
        linear = self.steps.of_each_kept(fixed, stacked, self.cut, list(kept))
        return _matrix_free(linear, self.steps.varies, self.vector)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
    """What a forward pass kept of all steps.

    Attributes:
      values: the numbers, stacked.
      keeping: what follows from them.
    """

    values: list[Array]
    keeping: Keeping = dataclasses.field(metadata={"static": True})

    def when(self, active: Active) -> Kept | None:
        """Itself, if it was kept for these active inputs, or for any.

        The maps make aux for the inputs that they were kept for, which a second derivative by other
        variables is not of: there the steps are made again. With active outputs they make none.
        """
        kept = self.keeping.active
        return self if kept == active or kept.y else None

    def operator(self, steps: Steps, start, size: int) -> MatrixFree:
        """The transposed Jacobians of a stretch."""
        return self.keeping.operator(steps, stretch(self.values, start, size))


def _fixed_and_stacked(steps: Steps):
    """What all steps share, and what each has of its own."""
    stacked = (list(steps.carry), list(steps.x), list(steps.new_carry))
    return (list(steps.consts), steps.extra), stacked


@dataclasses.dataclass(frozen=True, eq=False)
class _OnGroups:
    """A function of leaves, with aux beside its result, as one of grouped leaves."""

    grouped: Grouped
    aux_apart: bool

    def __call__(self, linear, v):
        out, aux = linear(self.grouped.split(v))
        return self.grouped.join(out), aux


def _matrix_free(linear: Partial, varies: Sequence[bool], vector: PyTree) -> MatrixFree:
    """The stack of maps that `ByProducts._map` makes."""
    on_groups: Any = linear.func
    if isinstance(on_groups, Completed):
        on_groups = on_groups.func
    apart = on_groups.aux_apart
    return MatrixFree(linear, varies, vector, codomain=vector, has_aux=True, aux_apart=apart)


def _numbers(shapes: Sequence[Any]) -> int:
    return sum(math.prod(a.shape) for a in shapes)


def _transpose_of(takes):
    """(linear, v) -> linear^T v for a linear function of values like ``takes``."""
    return lambda linear, v: jax.linear_transpose(linear, *takes)(v)


def _without_aux(linear, v):
    """linear(v) and nothing beside it."""
    return linear(v), None


def _distinct_aux(linear, v):
    out, aux = linear(v)
    return out, Distinct.of(aux)


def _drop_aux(linear, v):
    return linear(v)[0], None
