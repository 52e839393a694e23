"""Which products a solver makes, in which order: its schedule, as data.

A solver turns the state that enters a chain into the states between its steps. Of the maps
v -> M_t v + b_t, t = 0..n-1 in traversal order (from the loss to the input in
back-propagation), it makes two kinds of products:

    (M1, b1) ⋄ (M2, b2) = (M2 M1, M2 b1 + b2)    a matrix and a vector product
    M state + b                                  a vector product

`record` says for each solver which of them, and which at once; additions are free.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_int
from parscan_bp.operators import Dense, Operator, compose_cost, compose_shape
from parscan_bp.solvers import Associative, Blelloch, Chunked, Solver, Sweep
from parscan_bp.system import Ragged


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An input or a product of a schedule.

    Attributes:
      kind: "matrix" or "vector".
      start: the first step of the chain that it covers, in traversal order.
      stop: one beyond the last. A vector belongs to the state at ``stop``.
      operands: what is multiplied: (first, second) of a matrix product, the matrix and then the
        vectors whose sum it multiplies of a vector product. Empty for an input.
      flops: of this product, over the batch.
      operator: the operator, shapes only; ``None`` for a vector.
    """

    kind: Literal["matrix", "vector"]
    start: int
    stop: int
    operands: tuple[Node, ...] = ()
    flops: int = 0
    operator: Operator | None = None


Vector = tuple[Node, ...]
"""A sum of vectors; empty for zero."""


class Map(NamedTuple):
    """v -> M v + b."""

    matrix: Node
    vector: Vector


class Recorder:
    """Notes products instead of making them. The products of one call are made at once.

    Attributes:
      levels: the products so far, those of each call.
    """

    def __init__(self) -> None:
        self.levels: list[list[Node]] = []

    def compose(self, firsts: Sequence[Map], seconds: Sequence[Map]) -> list[Map]:
        """``first ⋄ second`` of every pair."""
        pairs = list(zip(firsts, seconds, strict=True))
        return self._level([lambda pair=pair: self._compose(*pair) for pair in pairs])

    def push(self, maps: Sequence[Map], states: Sequence[Vector]) -> list[Vector]:
        """``M state + b`` of every pair; no product is made of a state that is zero."""
        pairs = list(zip(maps, states, strict=True))
        return self._level([lambda pair=pair: self._push(*pair) for pair in pairs])

    def _level(self, calls):
        self.levels.append([])
        results = [call() for call in calls]
        if not self.levels[-1]:
            self.levels.pop()
        return results

    def _compose(self, first: Map, second: Map) -> Map:
        a, b = first.matrix, second.matrix
        assert a.operator is not None and b.operator is not None
        flops = compose_cost(a.operator, b.operator).flops
        operator = compose_shape(a.operator, b.operator)
        product = Node("matrix", a.start, b.stop, (a, b), flops, operator)
        self.levels[-1].append(product)
        return Map(product, self._push(second, first.vector))

    def _push(self, through: Map, state: Vector) -> Vector:
        if not state:
            return through.vector
        matrix = through.matrix
        assert matrix.operator is not None
        start, flops = min(v.start for v in state), matrix.operator.cost().flops
        product = Node("vector", start, matrix.stop, (matrix, *state), flops)
        self.levels[-1].append(product)
        return (product, *through.vector)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The products that lead to the states of a chain.

    Attributes:
      states: the n + 1 states, in traversal order.
      levels: the products that are made at once, level by level.
    """

    states: tuple[Vector, ...]
    levels: tuple[tuple[Node, ...], ...]

    @property
    def products(self) -> list[Node]:
        """Every product, operands before results."""
        return [node for level in self.levels for node in level]

    @property
    def matrix_products(self) -> int:
        """How many products are of two matrices."""
        return sum(node.kind == "matrix" for node in self.products)

    @property
    def vector_products(self) -> int:
        """How many products are of a matrix and a vector."""
        return sum(node.kind == "vector" for node in self.products)

    def critical_path(self) -> list[Node]:
        """The products, each needing the one before, that take the most flops together."""
        until: dict[Node, int] = {}
        for node in self.products:
            until[node] = node.flops + max(until.get(a, 0) for a in node.operands)
        path = [max(until, key=until.__getitem__)] if until else []
        while made := [a for node in path[-1:] for a in node.operands if a in until]:
            path.append(max(made, key=until.__getitem__))
        return path[::-1]


def schedule_of(solver: Solver, chain: int | Ragged, *, features: int = 20) -> Schedule:
    """The schedule of a solver for a chain.

    Args:
      solver: a solver that `record` knows.
      chain: the number n of equal steps, or a `Ragged` system of layers of different sizes. Of
        the latter, products with zeros and products that nothing depends on are left out, and
        every product is made as early as it can be, as a compiler does with them.
      features: H, the order of the dense Jacobians of equal steps, from which flops are counted.

    Returns:
      Its products. For equal steps their number, and that of the levels, are what the solver's
      ``complexity`` states.

    Raises:
      NotImplementedError: if the solver is not known, or cannot take the system.
      TypeError, ValueError: if ``chain`` or ``features`` is not a positive number.

    Source: BPPSA section 3.6 (steps and work).

    Example:
      >>> import parscan_bp as pb
      >>> schedule = schedule_of(pb.Blelloch(), 8)
      >>> len(schedule.levels), schedule.matrix_products, schedule.vector_products
      (6, 4, 12)
    """
    recorder = Recorder()
    if isinstance(chain, Ragged):
        states = _record_ragged(solver, recorder, chain)
        return Schedule(states, _earliest(recorder.levels, states))
    as_int("chain", chain)
    as_int("features", features)
    matrix = jax.ShapeDtypeStruct((features, features), jnp.float32)
    operator = jax.eval_shape(Dense, matrix)
    maps = [
        Map(Node("matrix", t, t + 1, operator=operator), (Node("vector", t + 1, t + 1),))
        for t in range(chain)
    ]
    states = tuple(record(solver, recorder, maps, (Node("vector", 0, 0),)))
    return Schedule(states, tuple(map(tuple, recorder.levels)))


def _record_ragged(solver: Solver, recorder: Recorder, system: Ragged) -> tuple[Vector, ...]:
    """As `Solver.run_ragged`: the cotangents enter with the maps, the state is zero."""
    given: list[Vector] = [
        () if g is None else (Node("vector", t, t),) for t, g in enumerate(reversed(system.g))
    ]
    maps = []
    for t, a in enumerate(reversed(system.operators)):
        solver.check(type(a), ragged=True)
        maps.append(Map(Node("matrix", t, t + 1, operator=jax.eval_shape(lambda a=a: a)), ()))
    entering = recorder.push(maps, given[:-1])
    maps = [Map(m.matrix, b) for m, b in zip(maps, entering, strict=True)]
    states = record(solver, recorder, maps, ())
    return tuple((*g, *state) for g, state in zip(given, states, strict=True))


def _earliest(
    levels: Sequence[Sequence[Node]], states: Sequence[Vector]
) -> tuple[tuple[Node, ...], ...]:
    """The products that a state depends on, each in the first level in which it can be made."""
    products = [node for level in levels for node in level]
    needed = {node for vector in states for node in vector}
    for node in reversed(products):
        if node in needed:
            needed.update(node.operands)
    at: dict[Node, int] = {}
    for node in products:
        if node in needed:
            at[node] = 1 + max(at.get(a, 0) for a in node.operands)
    depth = max(at.values(), default=0)
    return tuple(tuple(node for node in at if at[node] == k + 1) for k in range(depth))


@functools.singledispatch
def record(solver: Solver, recorder: Recorder, maps: Sequence[Map], state: Vector) -> list[Vector]:
    """Goes through the products of a solver; ``record.register`` adds a solver of one's own.

    Args:
      solver: the solver.
      recorder: makes the products.
      maps: the n maps of the chain in traversal order.
      state: the state that enters the first.

    Returns:
      The n + 1 states: those that enter the maps, and the one that leaves the last.

    Raises:
      NotImplementedError: if the solver is not known.
    """
    raise NotImplementedError(
        f"solver: no schedule is known for {type(solver).__name__}; describe it with "
        "parscan_bp.plots.record.register"
    )


@record.register
def _sweep(solver: Sweep, recorder, maps, state):
    states = [state]
    for through in maps:
        states += recorder.push([through], states[-1:])
    return states


@record.register
def _blelloch(solver: Blelloch, recorder, maps, state):
    levels: list[list] = []
    level = list(maps)
    while len(level) > 1 and (solver.up_levels is None or len(levels) < solver.up_levels):
        levels.append(level)
        pairs = -(-len(level) // 2) - 1
        # The map that ends the array is never used: its place is kept, it is not made.
        level = [*recorder.compose(level[0 : 2 * pairs : 2], level[1 : 2 * pairs : 2]), None]
    states = _sweep(Sweep(), recorder, level[:-1], state)
    for level in reversed(levels):
        second = recorder.push(level[0 : len(level) - 1 : 2], states[: len(level) // 2])
        states = [s for pair in zip(states, second, strict=False) for s in pair] + states[
            len(level) // 2 :
        ]
    return states + recorder.push(maps[-1:], states[-1:])


@record.register
def _chunked(solver: Chunked, recorder, maps, state):
    p = min(solver.chunks, len(maps))
    size = len(maps) // p
    # Position k of every chunk.
    whole = [maps[k : p * size : size] for k in range(size)]
    reduced = functools.reduce(recorder.compose, whole)
    *entering, _ = _blelloch(Blelloch(), recorder, reduced, state)
    shown = [entering]
    for level in whole:
        shown.append(recorder.push(level, shown[-1]))
    states = [state for chunk in zip(*shown[:-1], strict=True) for state in chunk]
    return states + _sweep(Sweep(), recorder, maps[p * size :], shown[-1][-1])


@record.register
def _associative(solver: Associative, recorder, maps, state):
    def scan(maps):
        n = len(maps)
        if n < 2:
            return maps
        odd = scan(recorder.compose(maps[0 : n - 1 : 2], maps[1::2]))
        even = maps[:1] + recorder.compose(odd[: (n - 1) // 2], maps[2::2])
        return [(odd if k % 2 else even)[k // 2] for k in range(n)]

    (first,) = recorder.push(maps[:1], [state])
    after = scan([Map(maps[0].matrix, first), *maps[1:]])
    return [state, *(through.vector for through in after)]
