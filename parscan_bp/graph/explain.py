"""What a graph will do: its live sets, its blocks, its plan, how deep its trees are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from parscan_bp.chain.api import plan_chain
from parscan_bp.chain.stages import Stages
from parscan_bp.graph.api import checked_inputs, graph_as_chain
from parscan_bp.graph.live import LiveSets
from parscan_bp.layers import activations, adjoint_operators
from parscan_bp.operators import BlockSparse, Identity, Operator
from parscan_bp.planner import Plan
from parscan_bp.solvers import Blelloch, Planned, Sharded
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class GraphExplanation:
    """What `graph` does; ``str()`` is a table.

    Attributes:
      live: the order of the nodes and the live sets between them.
      operators: the transposed Jacobians of the steps, their arrays as shapes and dtypes.
      plan: of the chain, see `parscan_bp.explain_chain`.
    """

    live: LiveSets
    operators: tuple[Operator, ...]
    plan: Plan | Stages

    @property
    def steps(self) -> int:
        """Nodes that back-propagation goes through, one after the other."""
        return len(self.live.order)

    @property
    def levels(self) -> int:
        """Levels of Algorithm 1 of BPPSA, each of operations side by side."""
        return Blelloch().complexity(self.steps).steps

    @property
    def largest(self) -> int:
        """Bytes of the largest live set."""
        return max(map(self.live.nbytes, range(self.steps + 1)))

    @property
    def stored(self) -> int:
        """Bytes of all live sets, which `graph` keeps for derivatives."""
        return sum(map(self.live.nbytes, range(self.steps + 1)))

    def __str__(self):
        live = self.live
        lines = [
            f"{self.steps} nodes, {live.longest_path} on the longest path; Blelloch() takes "
            f"{self.levels} levels",
            f"live sets: at most {self.largest:,} bytes, {self.stored:,} together; the values, "
            f"each once, {live.bytes_of_values:,}",
            f"{'step':<6}{'node':<16}{'bytes':>12}  {'blocks':<32}  live",
            f"{'':<6}{'inputs':<16}{live.nbytes(0):>12,}  {'':<32}  {', '.join(live.sets[0])}",
        ]
        for k, (node, op) in enumerate(zip(live.order, self.operators, strict=True)):
            lines.append(
                f"{k:<6}{node.name:<16.16}{live.nbytes(k + 1):>12,}  {_blocks(op):<32}  "
                f"{', '.join(live.sets[k + 1])}"
            )
        return "\n".join([*lines, str(self.plan)])


def explain_graph(
    nodes: Mapping[str, Any],
    params: Mapping[str, PyTree],
    inputs: Mapping[str, Any],
    *,
    outputs: str | Sequence[str] | None = None,
    solver: Planned | Sharded | None = None,
) -> GraphExplanation:
    """What `graph` does for the gradient of the parameters, without running it.

    Args:
      nodes, params, inputs, outputs: as in `graph`. Arrays of params and inputs may be
        `jax.ShapeDtypeStruct`.
      solver: whose plan; ``None`` is ``Planned()``. It may be `Sharded`.

    Returns:
      The explanation: ``str()`` is a table of the nodes in their order, with what is live after
      each, its bytes and the blocks of the step's operator; and the plan of `explain_chain`.

    Raises:
      As `graph` and `explain_chain`.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.layers import Add
      >>> nodes = {"h": (jnp.tanh, "x"), "y": (Add(), "x", "h")}
      >>> found = pb.explain_graph(nodes, {}, {"x": jnp.ones((2, 3))})
      >>> found.live.sets, found.steps, found.levels, found.largest
      ((('x',), ('x', 'h'), ('y',)), 2, 2, 48)
    """
    inputs = checked_inputs(inputs)
    live, own, _ = graph_as_chain(nodes, params, inputs, outputs)
    steps, state = live.steps, jax.eval_shape(live.entering, inputs)
    xs = jax.eval_shape(functools.partial(activations, steps), own, state)
    operators = jax.eval_shape(functools.partial(adjoint_operators, steps), own, xs)
    return GraphExplanation(live, tuple(operators), plan_chain(steps, own, state, solver))


def _blocks(op: Operator) -> str:
    """The kinds of an operator's blocks, and how many pass values through."""
    if not isinstance(op, BlockSparse):
        return type(op).__name__
    # Those in the last column lead to the value of the node.
    last = len(op.cols) - 1
    pairs = list(zip(op.blocks, op.places, strict=True))
    own = [type(block).__name__ for block, (_, col) in pairs if col == last]
    kept = sum(isinstance(block, Identity) and col < last for block, (_, col) in pairs)
    return ", ".join([*([f"{kept} kept"] if kept else []), *own])
