"""What the backward pass begins with: cotangents of the last carry and of the outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from parscan_bp.arguments import described
from parscan_bp.diagnose.derivatives import Some, of_jaxpr, pull
from parscan_bp.diagnose.levels import of_each, worst_entry
from parscan_bp.diagnose.search import BadSource, Search
from parscan_bp.diagnose.steps import with_consts_as_inputs
from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.jaxprs.stage import to_be_traced
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """A loss and its derivative, or the derivative alone.

    Attributes:
      cotangents: of the leaves of the last carry and of the outputs.
      loss: its value; ``None`` without one.
      program, operands: of the loss, whose last operands are these leaves.
    """

    cotangents: Some
    loss: Any = None
    program: ClosedJaxpr | None = None
    operands: Sequence[Any] = ()

    @property
    def is_finite(self) -> bool:
        """Whether all cotangents are."""
        return not np.any(of_each(self.cotangents, math.inf))

    def value(self, search: Search) -> BadSource:
        """Where a bad value of the loss comes from."""
        assert self.program is not None
        return search.value(self.program, self.operands, 0)

    def cotangent(self, search: Search, k: int) -> BadSource:
        """Where a bad cotangent comes from; of those that were given, it is not known."""
        if self.program is None:
            return BadSource(entry=worst_entry(self.cotangents[k]))
        one = [jnp.ones_like(self.loss)]
        skipped = len(self.operands) - len(self.cotangents)
        return search.cotangent(self.program, self.operands, one, skipped + k)


def objective_of(
    loss: Callable | None, cotangents: PyTree, out: PyTree, results: Sequence[Any]
) -> Objective:
    """See `diagnose`; ``out`` has the types of ``(carry, ys)``, ``results`` its leaves."""
    if loss is not None:
        return _of_loss(loss, out, results)
    if cotangents is not None:
        return Objective(_checked(cotangents, out))
    floats = map(is_differentiable, map(jax.typeof, results))
    last = len(jax.tree.leaves(out[0]))
    return Objective(
        [
            jnp.ones_like(v) if k < last and has_tangent else None
            for k, (v, has_tangent) in enumerate(zip(results, floats, strict=True))
        ]
    )


def _of_loss(loss: Callable, out: PyTree, results: Sequence[Any]) -> Objective:
    tree = jax.tree.structure(out)
    with to_be_traced():
        closed, made = jax.make_jaxpr(loss, return_shape=True)(*jax.tree.unflatten(tree, results))
    is_real = hasattr(made, "dtype") and jnp.issubdtype(made.dtype, jnp.floating)
    if not is_real or made.shape:
        raise TypeError(f"loss: got one that returns {made}; a real scalar is wanted")
    program, operands = with_consts_as_inputs(closed), [*closed.consts, *results]
    value = evaluate(program, operands)[0]
    given = pull(of_jaxpr(program), operands, [jnp.ones_like(value)])
    return Objective(given[len(closed.consts) :], value, program, operands)


def _checked(cotangents: PyTree, out: PyTree) -> Some:
    """Those that were given, of floats alone."""
    tree: Any = jax.tree.structure(out)
    wanted = "what jax.vjp takes for (carry, ys) is wanted"
    try:
        leaves = tree.flatten_up_to(cotangents)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"cotangents: got another structure than (carry, ys): {error}; {wanted}"
        ) from None
    given: list[Any] = []
    for leaf, result in zip(leaves, jax.tree.leaves(out), strict=True):
        if not is_differentiable(result):
            given.append(None)
            continue
        try:
            array = jnp.asarray(leaf, result.dtype)
        except (TypeError, ValueError):
            raise TypeError(f"cotangents: got {described(leaf)}; {wanted}") from None
        if array.shape != result.shape:
            raise ValueError(
                f"cotangents: got one of shape {array.shape} for {result.shape}; {wanted}"
            )
        given.append(array)
    return given
