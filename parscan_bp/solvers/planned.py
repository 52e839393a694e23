"""The products that pay, and no others: a schedule planned from the structures."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from parscan_bp.arguments import check_kind, set_ints
from parscan_bp.planner import CPU, ChainProblem, Machine, Plan, plan, run_order
from parscan_bp.solvers.base import Solver
from parscan_bp.system import Ragged


@dataclasses.dataclass(frozen=True, repr=False)
class Planned(Solver):
    """Multiplies neighbouring operators of a ragged system where that pays.

    Dynamic programming over the parenthesisation, before anything runs and from shapes and
    patterns alone: which stretches are multiplied into one operator, how, and which vectors are
    pushed through which products, such that ``workers`` workers end first and all that is alive
    takes at most ``memory_limit`` bytes. A convolution is pushed through as a matrix where that is
    faster: a pruned one, or one on a map of few positions. The plan of equal shapes is made once.

    Args:
      workers: operations that run side by side.
      memory_limit: bytes of operators, products, index plans and vectors; ``None`` is 4 GiB, or
        what the linear scan needs if that is more.
      machine: what costs are counted in, by default the package's own rates, not those that
        `measure_machine` measured, which ``solver=None`` of `chain` takes;
        `parscan_bp.planner.FLOPS` counts operations.

    Raises:
      TypeError, ValueError: if a number is not a positive int; on solving, if no schedule keeps
        the memory limit.

    Source: BPPSA sections 3.6 and 5.3, for any parenthesisation.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Dense, Diagonal
      >>> ops = [Dense(jnp.ones((1, 2))), Diagonal(jnp.ones(2)), Dense(jnp.ones((2, 3)))]
      >>> system = pb.Ragged(ops, [None, None, None, jnp.ones(3)])
      >>> [v.tolist() for v in pb.solve(system, pb.Planned())]
      [[6.0], [3.0, 3.0], [3.0, 3.0], [1.0, 1.0, 1.0]]
    """

    workers: int = 1
    memory_limit: int | None = dataclasses.field(default=None, kw_only=True)
    machine: Machine = dataclasses.field(default=CPU, kw_only=True)

    uniform: ClassVar = False
    ragged: ClassVar = True
    # What has no product is pushed through.
    needs: ClassVar = "products"

    def __post_init__(self):
        set_ints(self, ("memory_limit",), workers=1, memory_limit=1)
        check_kind("machine", self.machine, Machine)

    def with_memory_limit(self, limit):
        return dataclasses.replace(self, memory_limit=limit)

    def plan(self, system: Ragged) -> Plan:
        """What `run_ragged` does with a system, whose arrays may be abstract."""
        problem = ChainProblem.of(system.operators, system.g, system.wanted)
        return plan(problem, self.machine, self.workers, self.memory_limit)

    def run_ragged(self, system):
        made = self.plan(system)
        return run_order(made.schedule, system.operators, system.g, made.unpacked)

    def run(self, system, state):
        raise NotImplementedError(_UNIFORM)

    def complexity(self, n):
        raise NotImplementedError(_UNIFORM)


_UNIFORM = "Planned takes ragged systems only; equal steps want another solver, such as Chunked()"
