"""Which products a solver makes, in which order: its schedule, as data.

A solver turns the state that enters a chain into the states between its steps. Of the maps
v -> M_t v + b_t, t = 0..n-1 in traversal order (from the loss to the input in
back-propagation), it makes two kinds of products:

    (M1, b1) ⋄ (M2, b2) = (M2 M1, M2 b1 + b2)    a matrix and a vector product
    M state + b                                  a vector product

`record` says for each solver which of them, and which at once; additions are free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_int
from parscan_bp.operators import Dense, Operator, compose_cost, compose_shape
from parscan_bp.solvers import Solver
from parscan_bp.solvers.base import check_is_solver
from parscan_bp.system import Ragged


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedStep:
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
    operands: tuple[RecordedStep, ...] = ()
    flops: int = 0
    operator: Operator | None = None


Vector = tuple[RecordedStep, ...]
"""A sum of vectors; empty for zero."""


class RecordedMap(NamedTuple):
    """v -> M v + b."""

    matrix: RecordedStep
    vector: Vector


class Recorder:
    """Notes products instead of making them. The products of one call are made at once.

    Attributes:
      levels: the products so far, those of each call.
    """

    def __init__(self) -> None:
        self.levels: list[list[RecordedStep]] = []
        self._is_open = False

    def compose(
        self, firsts: Sequence[RecordedMap], seconds: Sequence[RecordedMap]
    ) -> list[RecordedMap]:
        """``first ⋄ second`` of every pair."""
        pairs = list(zip(firsts, seconds, strict=True))
        return self._level([lambda pair=pair: self._compose(*pair) for pair in pairs])

    def push(self, maps: Sequence[RecordedMap], states: Sequence[Vector]) -> list[Vector]:
        """``M state + b`` of every pair; no product is made of a state that is zero."""
        pairs = list(zip(maps, states, strict=True))
        return self._level([lambda pair=pair: self._push(*pair) for pair in pairs])

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """The products of all calls inside are made at once; none is an operand of another."""
        self.levels.append([])
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            if not self.levels[-1]:
                self.levels.pop()

    def _level(self, calls):
        if self._is_open:
            return [call() for call in calls]
        with self.at_once():
            return [call() for call in calls]

    def _compose(self, first: RecordedMap, second: RecordedMap) -> RecordedMap:
        a, b = first.matrix, second.matrix
        assert a.operator is not None and b.operator is not None
        flops = compose_cost(a.operator, b.operator).flops
        operator = compose_shape(a.operator, b.operator)
        product = RecordedStep("matrix", a.start, b.stop, (a, b), flops, operator)
        self.levels[-1].append(product)
        return RecordedMap(product, self._push(second, first.vector))

    def _push(self, through: RecordedMap, state: Vector) -> Vector:
        if not state:
            return through.vector
        matrix = through.matrix
        assert matrix.operator is not None
        start, flops = min(v.start for v in state), matrix.operator.cost().flops
        product = RecordedStep("vector", start, matrix.stop, (matrix, *state), flops)
        self.levels[-1].append(product)
        return (product, *through.vector)


@dataclasses.dataclass(frozen=True)
class Recording:
    """The products that lead to the states of a chain.

    Attributes:
      states: the n + 1 states, in traversal order.
      levels: the products that are made at once, level by level.
    """

    states: tuple[Vector, ...]
    levels: tuple[tuple[RecordedStep, ...], ...]

    @property
    def products(self) -> list[RecordedStep]:
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

    def critical_path(self) -> list[RecordedStep]:
        """The products, each needing the one before, that take the most flops together."""
        until: dict[RecordedStep, int] = {}
        for node in self.products:
            until[node] = node.flops + max(until.get(a, 0) for a in node.operands)
        path = [max(until, key=until.__getitem__)] if until else []
        while made := [a for node in path[-1:] for a in node.operands if a in until]:
            path.append(max(made, key=until.__getitem__))
        return path[::-1]


def schedule_of(solver: Solver, chain: int | Ragged, *, features: int = 20) -> Recording:
    """The schedule of a solver for a chain.

    Args:
      solver: a solver that `record` knows.
      chain: the number n of equal steps, or a `Ragged` system of layers of different sizes. Of
        the latter, products with zeros and products that nothing depends on are left out, and
        every product is made as early as it can be, as a compiler does with them.
      features: H, the order of the dense Jacobians of equal steps, from which flops are counted.

    Returns:
      Its products. For equal steps their number, and that of the levels, are what the solver's
      ``complexity`` states: of one that iterates, those of the most rounds, or of the one after
      which `ChunkedCorrections` is done where its chunks forget. Products of a part that is left
      over, or whose result a solver drops, are fewer here.

    Raises:
      NotImplementedError: if the solver is not known, or cannot take the system; or, as `BiCGStab`,
        makes of vectors more than products and sums.
      TypeError, ValueError: if ``solver`` is none, or ``chain`` or ``features`` not a positive
        number.

    Source: BPPSA section 3.6 (steps and work).

    Example:
      >>> import parscan_bp as pb
      >>> schedule = schedule_of(pb.Blelloch(), 8)
      >>> len(schedule.levels), schedule.matrix_products, schedule.vector_products
      (6, 4, 12)
    """
    recorder = Recorder()
    check_is_solver(solver, "a solver, such as Blelloch(),")
    if isinstance(chain, Ragged):
        for a in chain.operators:
            solver.check(type(a), ragged=True)
        states = record_layers(solver, recorder, chain)
        return Recording(states, _earliest(recorder.levels, states))
    chain, features = as_int("chain", chain), as_int("features", features)
    if not solver.uniform:
        raise NotImplementedError(
            f"chain: got {chain} equal steps; {solver!r} takes layers of different sizes only, a "
            "parscan_bp.Ragged"
        )
    matrix = jax.ShapeDtypeStruct((features, features), jnp.float32)
    operator = jax.eval_shape(Dense, matrix)
    maps = [
        RecordedMap(
            RecordedStep("matrix", t, t + 1, operator=operator),
            (RecordedStep("vector", t + 1, t + 1),),
        )
        for t in range(chain)
    ]
    states = tuple(record(solver, recorder, maps, (RecordedStep("vector", 0, 0),)))
    return Recording(states, tuple(map(tuple, recorder.levels)))


@functools.singledispatch
def record_layers(solver: Solver, recorder: Recorder, system: Ragged) -> tuple[Vector, ...]:
    """As `record`, for layers of different sizes, where a solver goes another way with them.

    Returns:
      The n + 1 cotangents, in traversal order.
    """
    return through_layers(recorder, system, functools.partial(record, solver))


def through_layers(recorder: Recorder, system: Ragged, run: Callable) -> tuple[Vector, ...]:
    """The cotangents enter with the maps, and the state that enters the first is zero.

    Args:
      recorder: makes the products.
      system: the system.
      run: `record` of a solver.
    """
    given, maps = layers_of(system)
    entering = recorder.push([RecordedMap(m.matrix, ()) for m in maps], given[:-1])
    maps = [RecordedMap(m.matrix, b) for m, b in zip(maps, entering, strict=True)]
    states = run(recorder, maps, ())
    return tuple((*g, *state) for g, state in zip(given, states, strict=True))


def layers_of(system: Ragged) -> tuple[list[Vector], list[RecordedMap]]:
    """The n + 1 given cotangents and the n maps v -> A_t v + g_t, in traversal order."""
    given: list[Vector] = [
        () if g is None else (RecordedStep("vector", t, t),)
        for t, g in enumerate(reversed(system.g))
    ]
    operators = [jax.eval_shape(lambda a=a: a) for a in reversed(system.operators)]
    maps = [
        RecordedMap(RecordedStep("matrix", t, t + 1, operator=a), given[t + 1])
        for t, a in enumerate(operators)
    ]
    return given, maps


def _earliest(
    levels: Sequence[Sequence[RecordedStep]], states: Sequence[Vector]
) -> tuple[tuple[RecordedStep, ...], ...]:
    """The products that a state depends on, each in the first level in which it can be made."""
    products = [node for level in levels for node in level]
    needed = {node for vector in states for node in vector}
    for node in reversed(products):
        if node in needed:
            needed.update(node.operands)
    at: dict[RecordedStep, int] = {}
    for node in products:
        if node in needed:
            at[node] = 1 + max(at.get(a, 0) for a in node.operands)
    depth = max(at.values(), default=0)
    return tuple(tuple(node for node in at if at[node] == k + 1) for k in range(depth))


@functools.singledispatch
def record(
    solver: Solver, recorder: Recorder, maps: Sequence[RecordedMap], state: Vector
) -> list[Vector]:
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
