"""The products of neighbours that a search looks at, as abstract operators with their costs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import numpy as np

from parscan_bp.operators import Cost, Operator
from parscan_bp.operators.algebra import product_and_cost
from parscan_bp.planner.machine import Machine
from parscan_bp.planner.schedule import Tree, span
from parscan_bp.sparsity import count_products

LONGEST = 8
"""Most operators of one product that a search looks at."""
MOST_PAIRS = 2**25
"""Pairs of entries up to which a product entry by entry is planned; more take minutes."""


@dataclasses.dataclass(frozen=True)
class ChainProblem:
    """A ragged system without its numbers; hashable.

    Attributes:
      treedef, leaves: of the list of operators; the leaves are shapes and dtypes.
      given: for each of lambda_0..lambda_n whether it has a right-hand side.
      wanted: positions of the vectors that somebody reads.
      stack: batch axes of the vectors.
    """

    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    given: tuple[bool, ...]
    wanted: tuple[int, ...]
    stack: tuple[int, ...]

    @classmethod
    def of(cls, operators: Sequence[Operator], g: Sequence, wanted: Sequence[int] | None = None):
        """The problem of a system whose arrays may be traced or abstract."""
        leaves, treedef = jax.tree.flatten(list(operators))
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        n = len(operators)
        inner = range(n) if wanted is None else sorted(t for t in wanted if t < n)
        stack = tuple(g[-1].shape[:-1])
        given = tuple(v is not None for v in g)
        return cls(treedef, shapes, given, tuple(inner), stack)

    @property
    def operators(self) -> list[Operator]:
        return jax.tree.unflatten(self.treedef, self.leaves)


@dataclasses.dataclass(frozen=True)
class ProductTask:
    """One product, or one vector pushed through one.

    Attributes:
      operator: the product.
      cost: flops and bytes moved.
      seconds: on one worker.
      nbytes: what is kept: the numbers of the product and its index plan, or the vector.
    """

    operator: Operator
    cost: Cost
    seconds: float
    nbytes: int


class ProductTable:
    """Costs of pushes and products, looked up by their trees.

    Args:
      problem: the system.
      machine: what costs are counted in.
      convert: whether a convolution may be pushed through as the matrix it stands for, where
        that is faster; it is formed once.
    """

    def __init__(self, problem: ChainProblem, machine: Machine, convert: bool = True):
        self.problem, self.machine = problem, machine
        self.length = len(problem.given) - 1
        self._given = problem.operators
        self._made: dict[Tree, ProductTask | None] = {}
        self._formed: list[ProductTask | None] = [self._form(op) for op in self._given]
        self.unpacked = tuple(
            t
            for t, task in enumerate(self._formed)
            if convert and task is not None and self._pays(t, task)
        )

    @functools.cached_property
    def linear(self) -> float:
        """Seconds of the linear scan, which no useful product takes longer than."""
        return sum(self.push(t).seconds + self.forming(t) for t in range(self.length))

    def operator(self, tree: Tree) -> Operator:
        """The abstract product."""
        if isinstance(tree, int):
            return self._given[tree]
        made = self.product(tree)
        assert made is not None
        return made.operator

    def formed(self, t: int) -> ProductTask | None:
        """Making the matrix of a convolution, for operators that are pushed through as one."""
        return self._formed[t] if t in self.unpacked else None

    def forming(self, t: int, always: bool = False) -> float:
        """Seconds that `formed` takes, 0 where nothing is; ``always`` of every convolution."""
        task = self._formed[t] if always else self.formed(t)
        return 0.0 if task is None else task.seconds

    def push(self, tree: Tree) -> ProductTask:
        """lambda_i = P lambda_j + b."""
        formed = self.formed(tree) if isinstance(tree, int) else None
        return self._push(self.operator(tree) if formed is None else formed.operator)

    def product(self, tree: tuple[Tree, Tree], most: float = math.inf) -> ProductTask | None:
        """Making a product of its two factors, and its vector b.

        Args:
          tree: the product; its factors have been looked at.
          most: seconds above which it is of no use.

        Returns:
          ``None`` where there is no such product, or it takes longer than ``most`` for certain.
        """
        if tree not in self._made:
            b, a = self.operator(tree[0]), self.operator(tree[1])
            if self._least(a, b) > most:
                return None
            self._made[tree] = self._multiply(tree, a, b)
        return self._made[tree]

    def _multiply(self, tree: tuple[Tree, Tree], a: Operator, b: Operator) -> ProductTask | None:
        if math.isinf(self._least(a, b)):
            return None
        made, cost = product_and_cost(a, b)
        seconds = self.machine.product(a, b, made, cost)
        for factor in tree:
            if isinstance(factor, int) and not made.closed:
                seconds += self.forming(factor, always=True)
        indices = 0
        if made.entry_pattern is not None and (pairs := _pairs(a, b)) is not None:
            indices = 8 * pairs + 4 * made.entry_pattern.nnz
        (_, middle), (_, stop) = span(tree[0]), span(tree[1])
        if any(self.problem.given[middle:stop]):
            vector = self._push(b)
            cost, seconds = cost + vector.cost, seconds + vector.seconds
        return ProductTask(made, cost, seconds, made.nbytes + indices)

    def _least(self, a: Operator, b: Operator) -> float:
        """Seconds that a product takes at least, before its pattern is looked for."""
        if not (a.composes and b.composes):
            return math.inf
        pairs = _pairs(a, b)
        if pairs is None:
            return 0.0
        maps = math.prod(np.broadcast_shapes(a.stack_shape, b.stack_shape))
        dense = b.shape[0] * a.shape[1]
        if pairs > dense:
            return 2 * maps * dense * a.shape[0] / self.machine.products
        return math.inf if pairs > MOST_PAIRS else 2 * maps * pairs / self.machine.entries

    def _push(self, op: Operator) -> ProductTask:
        cost = op.cost_over(self.problem.stack)
        out = op.shape[0] * op.dtype.itemsize
        vectors = math.prod(self.problem.stack)
        return ProductTask(op, cost, self.machine.matvec(op, cost, vectors), vectors * out)

    def _form(self, op: Operator) -> ProductTask | None:
        formed = jax.eval_shape(lambda op: op.unpacked(), op)
        if type(formed) is type(op):
            return None
        cost = Cost(0, 3 * formed.nbytes)
        return ProductTask(formed, cost, self.machine.forming(formed.nbytes), formed.nbytes)

    def _pays(self, t: int, formed: ProductTask) -> bool:
        explicit = formed.seconds + self._push(formed.operator).seconds
        return explicit < (1 - self.machine.margin) * self._push(self._given[t]).seconds


def _pairs(a: Operator, b: Operator) -> int | None:
    """Pairs of entries that a product of two sparse operators multiplies; else ``None``."""
    first, second = a.entry_pattern, b.entry_pattern
    return None if first is None or second is None else count_products(second, first)
