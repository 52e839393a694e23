"""A loop of steps as one program and the numbers that it runs on."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.tree_util import keystr, tree_flatten_with_path

from parscan_bp.diagnose.derivatives import Some
from parscan_bp.jaxprs.read import called, split_operands
from parscan_bp.jaxprs.stage import to_be_traced
from parscan_bp.originals import lax_scan
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class Names:
    """What to call the inputs and outputs of a step: each leaf by its path."""

    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class StepLoop:
    """A loop of steps.

    Attributes:
      body: ``[*consts, *carry, *x] -> [*carry, *y]``, flat.
      consts, init, xs: flat; xs have the steps along their leading axis.
      length: how many steps.
      reverse: whether the last of xs comes first.
    """

    body: ClosedJaxpr
    consts: Sequence[Any]
    init: Sequence[Any]
    xs: Sequence[Any]
    length: int
    reverse: bool

    @classmethod
    def of_equation(cls, eqn: JaxprEqn, operands: Sequence[Any]) -> StepLoop:
        """Those of a scan in a jaxpr."""
        consts, init, xs = split_operands(eqn, operands)
        return cls(called(eqn), consts, init, xs, eqn.params["length"], eqn.params["reverse"])

    def index(self, row: int) -> int:
        """The index into xs of the step that is the ``row``-th to run."""
        return self.length - 1 - row if self.reverse else row

    def operands(self, carries: Some, row: int, consts: Some = (), xs: Some = ()) -> list[Any]:
        """What the step takes that is the ``row``-th to run; or the tangents of these.

        Args:
          carries: those that enter each step, by the index into xs.
          row: counts the steps as they run.
          consts, xs: those of the loop if empty.
        """
        stacked = [*carries, *(xs or self.xs)]
        return [*(consts or self.consts), *self.entry(stacked, row)]

    def entry(self, stacked: Some, row: int) -> list[Any]:
        """Of stacked arrays, what belongs to the step that is the ``row``-th to run."""
        return [None if a is None else a[self.index(row)] for a in stacked]

    def parts(self, operands: Some) -> tuple[Some, Some, Some]:
        """Those of the constants, of init, and of xs."""
        a, b = len(self.consts), len(self.consts) + len(self.init)
        return operands[:a], operands[a:b], operands[b:]


def steps_of(
    step: Callable, init: PyTree, xs: PyTree, length: int | None, reverse: bool
) -> tuple[StepLoop, Names, Any]:
    """The loop of ``lax.scan(step, init, xs, length, reverse)``.

    Returns:
      The steps, the names of their leaves, and the types of ``(carry, ys)``.

    Raises:
      Whatever `jax.lax.scan` raises.
    """
    run = lambda: lax_scan(step, init, xs, length=length, reverse=reverse)  # noqa: E731
    leaves, tree = jax.tree.flatten(xs)
    with to_be_traced():
        out = jax.eval_shape(run)  # the types of the carry once they are promoted
        row = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in map(jax.typeof, leaves)]
        closed = jax.make_jaxpr(step)(out[0], jax.tree.unflatten(tree, row))
    start = [
        v if jnp.issubdtype(a.dtype, jax.dtypes.extended) else jnp.asarray(v, a.dtype)
        for v, a in zip(jax.tree.leaves(init), jax.tree.leaves(out[0]), strict=True)
    ]
    rows = list(map(jnp.asarray, leaves))
    n = len(rows[0]) if rows else operator.index(length)  # type: ignore[arg-type]
    names = Names(
        [*map(_constant, closed.consts), *_paths("carry", init), *_paths("xs", xs)],
        [*_paths("carry", init), *_paths("ys", out[1])],
    )
    return (
        StepLoop(with_consts_as_inputs(closed), closed.consts, start, rows, n, bool(reverse)),
        names,
        out,
    )


def with_consts_as_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with its constants as the first inputs."""
    jaxpr = closed.jaxpr
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    return ClosedJaxpr(jaxpr.replace(constvars=[], invars=inputs, debug_info=names), ())


def _paths(root: str, tree: PyTree) -> list[str]:
    return [f"{root}{keystr(path)}" for path, _ in tree_flatten_with_path(tree)[0]]


def _constant(value: Any) -> str:
    aval = jax.typeof(value)
    return f"a constant of the step, {aval.dtype.name}{list(aval.shape)}"
