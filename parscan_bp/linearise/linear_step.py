"""The linear map of a step as two programs: what is known of it, and what it does to a vector.

The transposed Jacobian of a recurrent step is a few products with weights, and between them chains
of elementwise products with values that are known before the loop starts: slopes of activations,
gates, masks. So it is taken apart,

    k = known(what all steps share, the step's own values),     A v, aux = apply(k, v),

of which the first is evaluated for all steps as one batch. The loop does the rest, every operation
on the vector, in the order in which they were traced.

That order is a promise. A chain ((v a) b) c is v (a b c) in exact numbers only: a b may underflow
or overflow where v a, times b, does not; and where v a is infinite, c may be too late. `lax.scan`
multiplies the vector by one slope after another, and so does this loop; a rewrite, of `passes`, may
not multiply known values with one another. In a compiled loop that costs nothing: such products are
one kernel, which waits for the arrays that it reads.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.tree_util import Partial

from parscan_bp.jaxprs.decisions import mixed
from parscan_bp.jaxprs.min_cut import Cut
from parscan_bp.jaxprs.read import depending, needed_equations, part, variables, with_known
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.per_step import PerStep
from parscan_bp.operators import MatrixFree
from parscan_bp.types import Array, PyTree

MOST_AUX = 2
"""Most numbers that a loop stores for the pullback, as a multiple of those that it carries."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distinct:
    """A pytree of values of which some are the same object; each is kept once.

    Attributes:
      kept: the values that differ.
      index: for each leaf, which of ``kept`` it is.
      tree: the structure.
    """

    kept: list[Array]
    index: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    tree: Any = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, values: PyTree) -> Distinct:
        leaves, tree = jax.tree.flatten(values)
        first = {id(v): v for v in leaves}
        position = {key: k for k, key in enumerate(first)}
        return cls(list(first.values()), tuple(position[id(v)] for v in leaves), tree)

    def all(self) -> PyTree:
        return jax.tree.unflatten(self.tree, [self.kept[k] for k in self.index])


@dataclasses.dataclass(frozen=True, eq=False)
class LinearStep:
    """The linear map ``v -> (A v, aux)`` of a step; compared by identity.

    Attributes:
      known: makes k, a list of arrays.
      apply: the loop's own program, ``[*k, *v] -> [*A v, *aux]``.
      width: number of leaves of v, and of A v.
      aux: where its leaves are found among the results that are no part of A v; what a pullback is
        made from, or ``None``.
      in_turn: whether the maps of many steps are evaluated one after the other.
      one_function: whether the loop is one function, and stores aux, whatever it takes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def pulled(shared, own, v):
      ...     return [v[0] * jnp.cos(own[0]) @ shared[0]], None, []
      >>> types = [jnp.ones((2, 2))], [jnp.ones(2)], [jnp.ones(2)]
      >>> step = LinearStep.of(jax.jit(pulled).trace(*types), *types)
      >>> [e.primitive.name for e in step.known.jaxpr.eqns]
      ['cos']
      >>> [e.primitive.name for e in step.apply.eqns], step.known.varies
      (['mul', 'dot_general'], (True, False))
    """

    known: PerStep
    apply: ClosedJaxpr
    width: int
    aux: Distinct | None = None
    in_turn: bool = False
    one_function: bool = False

    @classmethod
    def of(
        cls, traced: Any, shared: PyTree, own: PyTree, vector: PyTree, *, in_turn: bool = False
    ) -> LinearStep:
        """The two programs of a traced function.

        Args:
          traced: ``(shared, own, v) -> (A v, aux, stored)`` as `jax.jit` traces it, linear in v.
            ``stored`` are pairs of a value that it makes, and of the one of its arguments that
            holds the same value.
          shared, own, vector: the arguments, or their types.
          in_turn: see `LinearStep`.
        """
        closed, (out, aux, _) = traced.jaxpr, traced.out_info
        jaxpr = closed.jaxpr
        first, count = len(jax.tree.leaves((shared, own))), len(jax.tree.leaves(vector))
        width, ends = len(jax.tree.leaves(out)), len(jax.tree.leaves((out, aux)))
        results, stored = jaxpr.outvars[:ends], jaxpr.outvars[ends:]
        at = Distinct.of(jax.tree.unflatten(jax.tree.structure(aux), results[width:]))
        moving = depending(jaxpr, jaxpr.invars[first : first + count])
        needed = needed_equations(part(jaxpr, jaxpr.invars, results))
        loop = [eqn for eqn in needed if not moving.isdisjoint(eqn.outvars)]
        read = [v for eqn in loop for v in variables(eqn.invars) if v not in moving]
        k = list(dict.fromkeys(read))
        known = _reading(part(jaxpr, jaxpr.invars[:first], k), stored)
        making = PerStep(
            ClosedJaxpr(known, closed.consts), len(jax.tree.leaves(shared)), jax.tree.structure(k)
        )
        inputs = [*k, *jaxpr.invars[first:]]
        outs = [*results[:width], *at.kept]
        apply = _linear_part(jaxpr.replace(constvars=[], eqns=loop), inputs, outs, moving)
        return cls(making, apply, width, None if aux is None else at, in_turn)

    def __call__(self, k: Sequence[Array], v: PyTree) -> tuple[list[Array], Distinct | None]:
        """``(A v, aux)``."""
        return self._results(evaluate(self.apply, [*k, *jax.tree.leaves(v)]))

    def _results(self, outs: Sequence[Array]) -> tuple[list[Array], Distinct | None]:
        out, kept = list(outs[: self.width]), list(outs[self.width :])
        return out, None if self.aux is None else dataclasses.replace(self.aux, kept=kept)

    def rewritten(
        self,
        run: Callable[[list[Array], list[Array]], Sequence[Array]],
        *,
        known: PerStep | None = None,
        vector: Sequence[Any] | None = None,
    ) -> LinearStep:
        """The same map by another program.

        Args:
          run: ``(k, v) -> [*A v, *aux]``.
          known: what makes k, if it is another.
          vector: types of v, if they are others.
        """
        known = self.known if known is None else known
        types = list(self.vector if vector is None else vector)
        apply = jax.make_jaxpr(run)(list(known.jaxpr.out_avals), types)
        return dataclasses.replace(self, known=known, apply=apply, width=len(types))

    @property
    def vector(self) -> Sequence[Any]:
        """The types of v, which are those of A v."""
        return self.apply.in_avals[len(self.apply.in_avals) - self.width :]

    @property
    def is_stored(self) -> bool:
        """Whether a loop stores aux: far more of it is sooner made again, of all v at once."""
        if self.one_function:
            return True
        numbers = [sum(math.prod(a.shape) for a in of) for of in (self.aux_types, self.vector)]
        return numbers[0] <= MOST_AUX * numbers[1]

    @property
    def aux_types(self) -> Sequence[Any]:
        """The types of aux, each value once."""
        return self.apply.out_avals[self.width :]

    @functools.cached_property
    def cut(self) -> Cut:
        """`known` in two parts; what a forward pass keeps for it are the results of the first."""
        return Cut.of(self.known.varying, self.known.shared)

    @functools.cached_property
    def without_aux(self) -> LinearStep:
        """The same map with nothing beside A v."""
        jaxpr = self.apply.jaxpr
        jaxpr = part(jaxpr, jaxpr.invars, jaxpr.outvars[: self.width])
        apply = ClosedJaxpr(jaxpr, self.apply.consts)
        return dataclasses.replace(self, apply=apply, aux=None)

    def operator(self, k: Sequence[Array], *, all_aux: bool = False) -> MatrixFree:
        """The stack of the maps of many steps.

        Args:
          k: as `known` makes it of them.
          all_aux: whether aux is there though a loop had better not store it.
        """
        step = self if all_aux or self.is_stored else self.without_aux
        how = {"has_aux": True, "in_turn": self.in_turn}
        vector = list(self.vector)
        return MatrixFree(Partial(step, list(k)), self.known.varies, vector, codomain=vector, **how)

    def __str__(self):
        return f"ahead of the loop, for all steps:\n{self.known.jaxpr}\nin it:\n{self.apply}"


def _reading(jaxpr: Jaxpr, pairs: Sequence[Any]) -> Jaxpr:
    """The program that reads what is stored, where that stands for what it makes.

    A value that is compared with what it was made of is not read, but made again with it.

    Args:
      jaxpr: the program.
      pairs: of its variables, one that is made and one that is read, by turns.
    """
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    stored = {
        v: read
        for v, read in zip(pairs[::2], pairs[1::2], strict=True)
        if isinstance(v, Var) and v in made and v.aval == read.aval
    }
    while compared := {v for _, held in mixed(jaxpr, stored) for v in held}:
        stored = {v: read for v, read in stored.items() if v not in compared}
    return with_known(jaxpr, stored)


def _linear_part(
    jaxpr: Jaxpr, inputs: Sequence[Var], outs: Sequence[Any], moving: set[Any]
) -> ClosedJaxpr:
    """What the loop does; of the results, those that do not depend on the vector are zero."""
    depends = [isinstance(v, Var) and v in moving for v in outs]
    made = [v for v, is_made in zip(outs, depends, strict=True) if is_made]
    closed = ClosedJaxpr(part(jaxpr, inputs, made), ())
    if all(depends):
        return closed

    def with_zeros(*values):
        results = iter(evaluate(closed, values))
        return [
            next(results) if is_made else jnp.zeros(v.aval.shape, v.aval.dtype)
            for v, is_made in zip(outs, depends, strict=True)
        ]

    return jax.make_jaxpr(with_zeros)(*closed.in_avals)
