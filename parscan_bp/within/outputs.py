"""A scan whose buffers are outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import open_jaxpr, split_operands
from parscan_bp.jaxprs.replay import bind, interpret
from parscan_bp.types import Array, PyTree
from parscan_bp.within.buffers import Buffer, index_of, overwrites

ApplyEquation = Callable[[JaxprEqn, Sequence[Any]], Sequence[Any]]


class ScanCall(NamedTuple):
    """A call of a scan, and what is done with its result.

    Attributes:
      step, init, xs: as in `jax.lax.scan`.
      results: ``(carry, ys) -> outputs`` of the equation that it stands for.
    """

    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    init: PyTree
    xs: PyTree
    results: Callable[[PyTree, PyTree], list[Array]]


def loop_of(
    eqn: JaxprEqn, values: Sequence[Array], buffers: Sequence[Buffer], apply: ApplyEquation
) -> ScanCall:
    """The loop of a scan equation.

    Args:
      eqn: the equation.
      values: its operands.
      buffers: leaves of the carry that become outputs.
      apply: what is done in place of each equation of its step.
    """
    body, reverse = eqn.params["jaxpr"], eqn.params["reverse"]
    consts, carry, xs = split_operands(eqn, values)
    filled = {b.leaf: b for b in buffers}
    others = [k for k in range(len(carry)) if k not in filled]
    uses = {id(use.equation): (b, use) for b in buffers for use in b.uses}

    def step(state, x):
        kept, rest = state
        rows, x = x
        current, ahead = dict(zip(filled, rows[0], strict=True)), iter(rows[1])
        leaves = {**current, **dict(zip(others, rest, strict=True))}

        def use_row(equation, given):
            if id(equation) not in uses:
                return apply(equation, given)
            buffer, use = uses[id(equation)]
            if use.lag:
                given = [kept[buffer.leaf][use.lag - 1], *given[1:]]
            elif use.lag is None:
                given = [next(ahead), *given[1:]]
            return [_at_row(equation, given, buffer.axis)]

        inputs = [*consts, *(leaves[k] for k in range(len(carry))), *x]
        outs = interpret(body, inputs, use_row)
        after = {k: [outs[k], *rows][: len(rows)] for k, rows in kept.items()}
        made = [outs[k] for k in others], [outs[k] for k in filled], outs[len(carry) :]
        return (after, made[0]), made[1:]

    def results(last, ys):
        whole = dict(zip(others, last[1], strict=True))
        for (leaf, buffer), rows in zip(filled.items(), ys[0], strict=True):
            whole[leaf] = _filled(carry[leaf], buffer, rows, reverse)
        return [*(whole[k] for k in range(len(carry))), *ys[1]]

    own = [
        _rows(carry[b.leaf], b.axis, b.written, reverse) if b.own_read else None for b in buffers
    ]
    ahead = [
        _rows(carry[b.leaf], b.axis, use.rows, reverse)
        for b, use in _in_order(eqn, uses)
        if use.lag is None
    ]
    kept = {b.leaf: [_row(carry[b.leaf], b.axis, row) for row in b.before] for b in buffers}
    return ScanCall(step, (kept, [carry[k] for k in others]), ((own, ahead), xs), results)


def _in_order(eqn: JaxprEqn, uses: dict[int, Any]) -> Iterator[Any]:
    """The uses in the order in which a step comes to them."""
    body = open_jaxpr(eqn.params["jaxpr"])
    return (uses[id(e)] for e in body.eqns if id(e) in uses)


def _at_row(eqn: JaxprEqn, values: Sequence[Array], axis: int) -> Array:
    """The result of an equation whose array is one row alone."""
    if overwrites(eqn, axis):
        dynamic = eqn.primitive.name == "dynamic_update_slice"
        return values[1] if dynamic else jnp.expand_dims(values[2], axis)
    operand, place = index_of(eqn, axis)  # type: ignore[misc]
    values = list(values)
    index = values[operand]
    zero = jnp.zeros_like(index) if place is None else index.at[place].set(0)
    values[operand] = zero
    return bind(eqn, values)[0]


def _row(buffer: Array, axis: int, row: int) -> Array:
    return lax.slice_in_dim(buffer, row, row + 1, axis=axis)


def _rows(buffer: Array, axis: int, rows: np.ndarray, reverse: bool) -> Array:
    """The rows of all steps, each with its axis, as inputs of the scan."""
    rows = rows[::-1] if reverse else rows
    if _is_range(rows):
        taken = lax.slice_in_dim(buffer, int(rows[0]), int(rows[-1]) + 1, axis=axis)
    else:
        taken = jnp.take(buffer, rows, axis=axis, mode="clip")
    return jnp.expand_dims(jnp.moveaxis(taken, axis, 0), axis + 1)


def _filled(buffer: Array, of: Buffer, rows: Array, reverse: bool) -> Array:
    """The buffer with the rows that the steps have made."""
    written = of.written[::-1] if reverse else of.written
    rows = jnp.moveaxis(jnp.squeeze(rows, of.axis + 1), 0, of.axis)
    order = np.argsort(written)
    if not _is_range(written):
        written, rows = written[order], jnp.take(rows, order, axis=of.axis, mode="clip")
    if not _is_range(written):
        index = (slice(None),) * of.axis + (written,)
        return buffer.at[index].set(rows, indices_are_sorted=True, unique_indices=True)
    if len(written) == buffer.shape[of.axis]:
        return rows
    return lax.dynamic_update_slice_in_dim(buffer, rows, int(written[0]), of.axis)


def _is_range(rows: np.ndarray) -> bool:
    """Whether each is the one behind the last."""
    return bool((np.diff(rows) == 1).all())
