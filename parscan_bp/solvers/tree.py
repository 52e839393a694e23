"""Base of the solvers that form every Jacobian and multiply them in a tree."""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.operators import Operator, to_scaled
from parscan_bp.planner.plan import DEFAULT_MEMORY_LIMIT
from parscan_bp.solvers.base import Solver
from parscan_bp.solvers.collect import collect_in_chunks, default_chunk
from parscan_bp.system import block_shape
from parscan_bp.trees import add, eval_shape, nbytes
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TreeSolver(Solver):
    """Base of the solvers that form every Jacobian and multiply them in a tree.

    Products come before vectors, which shows at the ends of the range. An infinite or NaN entry of
    a Jacobian meets zeros that no vector would bring to it, and inf * 0 is NaN: it can make NaN of
    all that its structure might connect it with, where `Sweep` is finite or infinite. That is the
    entry itself in a `Diagonal`, its block in a `BlockDiagonal`, every unit in a dense map; at its
    own step and those that are traversed after it, earlier ones for gradients; never at others, and
    never in another batch entry. Finite products may overflow and underflow, too, unless they are
    ``scaled``; and they may cancel, which `parscan_bp.Report` is about.

    Args:
      memory_limit: bytes that the Jacobians and their products may take; a system that
        needs more is refused before anything runs.
      scaled: whether every number of a product keeps a power of two beside it. Products of
        Jacobians can leave the range where the vector recurrence is tame, and then inf * 0 makes
        NaN of finite answers, or 0 of small ones; of scaled products, every component has the
        error bound of a sweep, see `operators.Scaled`. Products of matrices larger than 4x4 take 5
        to 25 times as long (CPU), of diagonals hardly longer.
      collect_chunk: steps per chunk when contributions are collected afterwards;
        ``None`` chooses by size, and takes all at once in GPU kernels.
    """

    memory_limit: int = DEFAULT_MEMORY_LIMIT
    scaled: bool = False
    collect_chunk: int | None = None

    def __post_init__(self):
        set_ints(self, ("collect_chunk",), memory_limit=1, collect_chunk=1)
        check_bool("scaled", self.scaled)

    @property
    def in_range(self):
        return self.scaled

    def with_memory_limit(self, limit):
        return dataclasses.replace(self, memory_limit=limit)

    @abc.abstractmethod
    def states(self, operator: Operator, leaving: Array, state: Array) -> tuple[Array, Array]:
        """The state that enters each step, in traversal order, and the last that leaves.

        Args:
          operator: explicit stack M in traversal order.
          leaving: vectors b with ``state <- M state + b``, stacked.
          state: the state before the first traversed step.

        They are given by these names.
        """

    def run(self, system, state):
        n = system.length
        shape = block_shape(system, n)
        self.check(type(shape.operator))
        self.check_memory(n, shape.operator)
        block = system.block(0, n)
        operator = self.form(block.operator)
        b = block.leaving
        if block.entering is not None:
            pushed = operator.matvec(block.entering)
            b = pushed if b is None else b + pushed
        if b is None:
            b = lax.broadcast(jnp.zeros_like(state), (n,))
        shown, last = self._traverse(operator, b, state, system.backward)
        shown = add(block.entering, shown)
        size = self.collect_chunk or self.steps_to_collect(n, shown)
        summed, out = collect_in_chunks(system, shown, None, last, size)
        return last, summed, out

    def steps_to_collect(self, n: int, shown: Array) -> int:
        """Of how many of n steps contributions are collected at a time: what stays in a cache.

        Args:
          n: all steps.
          shown: the vectors shown in them.
        """
        return default_chunk(n, nbytes(shown))

    def _traverse(self, operator, b, state, backward) -> tuple[Array, Array]:
        """`states` with steps in the order of their positions."""
        operator = operator.broadcast(b.shape[0])  # a tree slices all leaves
        if backward:
            operator, b = jax.tree.map(lambda a: a[::-1], (operator, b))
        # By name: one's own solver may take them in another order.
        made = self.states(operator=operator, leaving=b, state=state)
        got, want = jax.tree.map(jnp.shape, made), (b.shape, state.shape)
        if not isinstance(made, tuple) or got != want:
            raise ValueError(
                f"{type(self).__name__}.states returned {got}, in shapes; (the state that enters "
                f"each step, the last that leaves), {want}, is wanted"
            )
        shown, last = made
        return (shown[::-1] if backward else shown), last

    def form(self, operator):
        operator = super().form(operator)
        return to_scaled(operator) if self.scaled else operator

    def check_memory(self, n, operator):
        one = eval_shape(self.form, operator)
        need = nbytes(one) * max(1, -(-self.complexity(n).operators // max(n, 1)))
        if need > self.memory_limit:
            raise ValueError(
                f"memory_limit: {type(self).__name__} needs about {need:,} bytes for {n} Jacobians "
                f"({type(operator).__name__}, {one.shape[0]}x{one.shape[1]}) and their "
                f"products, more than the limit of {self.memory_limit:,}; raise memory_limit= or "
                "use Sweep()"
            )
