"""A linear step for the sequential loop: what it knows is made ahead of all steps.

The transposed Jacobian of a recurrent step is a few products with weights, and between them chains
of elementwise products with values that are known before the loop starts: slopes of activations,
gates, masks. These are evaluated for all steps as one batch. The loop does the rest, every
operation on the vector, in the order in which they were traced.

That order is a promise. A chain ((v a) b) c is v (a b c) in exact numbers only: a b may underflow
or overflow where v a, times b, does not; and where v a is infinite, c may be too late. `lax.scan`
multiplies the vector by one slope after another, and so does this loop. In a compiled loop that
costs nothing: such products are one kernel, which waits for the arrays that it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal
from jax.tree_util import Partial

from parscan_bp.cpu.row_product import as_row_product
from parscan_bp.jaxprs.joined_pads import joined_pads
from parscan_bp.jaxprs.read import needed_equations
from parscan_bp.jaxprs.replay import bind
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class _Apply:
    """An operation of the loop.

    Attributes:
      eqn: the equation.
      operands: where each is found: among the loop's own values, the known ones, or as it is.
      results: where its results are kept.
    """

    eqn: JaxprEqn
    operands: tuple[tuple[str, Any], ...]
    results: tuple[int, ...]


class _Known:
    """The known values that the loop reads, each kept once."""

    def __init__(self):
        self.values: list[Array] = []
        self._place: dict[tuple[int, bool], int] = {}

    def place(self, value: Array, *, transposed: bool = False) -> int:
        """Where a value, or the transpose of a matrix, is kept."""
        key = id(value), transposed
        if key not in self._place:
            self._place[key] = len(self.values)
            self.values.append(value.T if transposed else value)
        return self._place[key]


def made_ahead(function: Partial, state: PyTree) -> Partial:
    """A linear function that is left with what depends on its argument.

    Args:
      function: linear in the state; what it knows are its leaves.
      state: pytree of the shapes of the state.

    Returns:
      The same function; its leaves are what it knows when it starts.
    """
    leaves, tree = jax.tree.flatten(function)
    closed, result = jax.make_jaxpr(
        lambda leaves, v: jax.tree.unflatten(tree, leaves)(v), return_shape=True
    )(leaves, state)
    closed = joined_pads(closed)
    jaxpr, known = closed.jaxpr, _Known()
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, leaves, strict=False))
    own = {v: k for k, v in enumerate(jaxpr.invars[len(leaves) :])}
    program: list[_Apply] = []

    def read(v):
        return v.val if isinstance(v, Literal) else values[v]

    for eqn in needed_equations(jaxpr):
        if not any(not isinstance(v, Literal) and v in own for v in eqn.invars):
            values.update(zip(eqn.outvars, bind(eqn, [read(v) for v in eqn.invars]), strict=True))
            continue
        eqn, operands = _operands(eqn, own, known, read)
        results = tuple(range(len(own), len(own) + len(eqn.outvars)))
        own.update(zip(eqn.outvars, results, strict=True))
        program.append(_Apply(eqn, operands, results))
    outs = tuple((None if isinstance(v, Literal) else own.get(v), v.aval) for v in jaxpr.outvars)
    run = _Program(tuple(program), outs, jax.tree.structure(state), jax.tree.structure(result))
    return Partial(run, known.values)


def _operands(eqn, own, known: _Known, read: Callable):
    """The equation as the loop does it, and where its operands are found."""
    transposed, moving = False, [not isinstance(v, Literal) and v in own for v in eqn.invars]
    product = as_row_product(eqn) if moving == [True, False] else None
    if product is not None:
        transposed = eqn.params["dimension_numbers"][0][1] == (1,)
        eqn = product

    def place(v, moves):
        if moves:
            return "own", own[v]
        if isinstance(v, Literal):
            return "constant", v.val
        return "known", known.place(read(v), transposed=transposed)

    return eqn, tuple(map(place, eqn.invars, moving))


def distinct_results(linear: Partial, first: int) -> list[Any]:
    """Types of the leaves of such a function's result from ``first`` on, each value once."""
    program: Any = linear.func
    avals: dict[Any, Any] = {}
    for k, (place, aval) in enumerate(program.outs[first:]):
        avals.setdefault(("zero", k) if place is None else place, aval)
    return list(avals.values())


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """What is left for the loop; compared by identity."""

    program: tuple[_Apply, ...]
    outs: tuple[tuple[int | None, Any], ...]
    state_tree: Any
    out_tree: Any

    def __call__(self, known: Sequence[Array], state: PyTree) -> PyTree:
        assert jax.tree.structure(state) == self.state_tree
        own: dict[int, Array] = dict(enumerate(jax.tree.leaves(state)))
        find = {"own": own.__getitem__, "known": known.__getitem__, "constant": lambda c: c}
        for step in self.program:
            values = [find[kind](key) for kind, key in step.operands]
            own.update(zip(step.results, bind(step.eqn, values), strict=True))
        leaves = [
            jnp.zeros(aval.shape, aval.dtype) if place is None else own[place]
            for place, aval in self.outs
        ]
        return jax.tree.unflatten(self.out_tree, leaves)
