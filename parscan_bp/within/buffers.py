"""Buffers that a loop fills row by row, as outputs.

A loop of `jax.lax.fori_loop` has no outputs, so programs write them into the carry:
``Y.at[k].set(y)``. The carry then has as many numbers as the loop has steps, and its derivative
costs as much at every step. Where the program itself says which row each step writes, and no two
steps write the same, the rows are outputs of the scan, and the buffer is put together behind it.

What the step reads of the buffer is a row that it or no step before has written, which is an input
of the scan, or the row that the step d steps before has written: the carry keeps the last d rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var

from parscan_bp.jaxprs.primitive_kinds import ROW_READS, ROW_WRITES
from parscan_bp.jaxprs.read import open_jaxpr, scan_counts, shape_of, variables
from parscan_bp.within.known import KnownIntegers
from parscan_bp.within.sites import Site

MOST_ROWS = 8
"""Of how many steps before the rows are kept in the carry: multi-step methods read a few."""


@dataclasses.dataclass(frozen=True)
class Use:
    """An equation that reads or writes one row of a buffer at every step.

    Attributes:
      equation: the equation.
      rows: the row of each step, the first step first.
      lag: 0 for the row that the step itself writes, as it then is; d for the row that the step d
        steps before has written; ``None`` for a row that no step has written yet.
    """

    equation: JaxprEqn
    rows: np.ndarray
    lag: int | None


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A leaf of the carry of which each step writes one row, and no two steps the same.

    Attributes:
      leaf: its position among the leaves of the carry.
      axis: along which its rows are.
      written: the row of each step, the first step first.
      uses: in the order of the step.
      before: for d = 1, 2, ... the row which stands for that of the step d steps before the first.
      own_read: whether a step needs what was in the row that it writes.
    """

    leaf: int
    axis: int
    written: np.ndarray
    uses: tuple[Use, ...]
    before: tuple[int, ...]
    own_read: bool


def buffers_of(site: Site) -> list[Buffer]:
    """The leaves of the carry of a scan that its steps fill row by row."""
    jaxpr = open_jaxpr(site.equation.params["jaxpr"])
    count, carry = scan_counts(site.equation)
    if site.equation.params["length"] == 0:
        return []
    chains = {leaf: _uses_of(jaxpr, jaxpr.invars[count + leaf], leaf) for leaf in range(carry)}
    chains = {leaf: equations for leaf, equations in chains.items() if equations}
    if not chains:
        return []
    with site.equation.ctx.manager:  # the precision of integers under which it was traced
        known = KnownIntegers(site)
        found = [_buffer(leaf, equations, known) for leaf, equations in chains.items()]
    return [buffer for buffer in found if buffer is not None]


def _uses_of(jaxpr: Jaxpr, buffer: Var, leaf: int) -> list[JaxprEqn]:
    """The equations that read and write a leaf of the carry; none if they do anything else."""
    states, uses = {buffer}, []
    for eqn in jaxpr.eqns:
        if states.isdisjoint(variables(eqn.invars)):
            continue
        name = eqn.primitive.name
        if not states.isdisjoint(variables(eqn.invars[1:])) or name not in ROW_READS | ROW_WRITES:
            return []
        uses.append(eqn)
        if name in ROW_WRITES:
            states.update(eqn.outvars)
    outs = {k: v for k, v in enumerate(jaxpr.outvars) if v in states}
    aval: Any = buffer.aval
    returned = list(outs) == [leaf] and outs[leaf] is not buffer
    return uses if returned and not aval.weak_type else []


def _buffer(leaf: int, equations: Sequence[JaxprEqn], known: KnownIntegers) -> Buffer | None:
    buffer = equations[0].invars[0]
    for axis, size in enumerate(shape_of(buffer)):
        found = [_rows(eqn, axis, known) for eqn in equations]
        rows = [r for r in found if r is not None and r.min() >= 0 and r.max() < size]
        if len(rows) < len(equations):
            continue
        writes = [r for r, eqn in zip(rows, equations, strict=True) if _writes(eqn)]
        written = writes[0]
        once = len(np.unique(written)) == len(written)
        if not once or not all(np.array_equal(r, written) for r in writes):
            continue
        try:
            uses = tuple(Use(e, r, _lag(r, written)) for e, r in zip(equations, rows, strict=True))
            own_read = any(_reads_own(use, buffer, axis) for use in uses)
            return Buffer(leaf, axis, written, uses, _before(uses, written), own_read)
        except _Unordered:
            continue
    return None


class _Unordered(Exception):
    """A row is read that some step or other has written."""


def _reads_own(use: Use, buffer: Any, axis: int) -> bool:
    """Whether it needs the row of its own step, as it was at the begin of that."""
    eqn = use.equation
    return use.lag == 0 and eqn.invars[0] is buffer and not overwrites(eqn, axis)


def _writes(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ROW_WRITES


def _rows(eqn: JaxprEqn, axis: int, known: KnownIntegers) -> np.ndarray | None:
    """Which single row along an axis an equation reads or writes at each step, if it is known."""
    index = index_of(eqn, axis)
    if index is None:
        return None
    operand, place = index
    (values,) = known.of([eqn.invars[operand]])
    return None if values is None else values if place is None else values[:, place]


def index_of(eqn: JaxprEqn, axis: int) -> tuple[int, int | None] | None:
    """The operand with the index along an axis, and its place in it; ``None`` for several rows."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dynamic_slice":
        return (1 + axis, None) if params["slice_sizes"][axis] == 1 else None
    if name == "dynamic_update_slice":
        return (2 + axis, None) if shape_of(eqn.invars[1])[axis] == 1 else None
    how = params["dimension_numbers"]
    reads = name in ROW_READS
    axes = how.start_index_map if reads else how.scatter_dims_to_operand_dims
    single = params["slice_sizes"][axis] == 1 if reads else axis in how.inserted_window_dims
    if len(shape_of(eqn.invars[1])) != 1 or axis not in axes or not single:
        return None
    return 1, axes.index(axis)


def overwrites(eqn: JaxprEqn, axis: int) -> bool:
    """Whether nothing of the row is left that was there."""
    shape = list(shape_of(eqn.invars[0]))
    if eqn.primitive.name == "dynamic_update_slice":
        shape[axis] = 1
        return list(shape_of(eqn.invars[1])) == shape
    del shape[axis]
    # `.at[k].apply` is a scatter, too, with a function of what was there.
    puts = eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is None
    return puts and list(shape_of(eqn.invars[2])) == shape


def _lag(rows: np.ndarray, written: np.ndarray) -> int | None:
    """See `Use`."""
    if np.array_equal(rows, written):
        return 0
    step = {int(row): t for t, row in enumerate(written)}
    writer = np.array([step.get(int(row), len(written)) for row in rows])
    before = np.arange(len(rows)) - writer  # negative where no step has written it yet
    if (before < 0).all():
        return None
    lag = int(before[-1])
    begun = np.arange(len(rows)) >= lag
    if not 0 < lag <= MOST_ROWS or (before[begun] != lag).any() or (before[~begun] >= 0).any():
        raise _Unordered
    return lag


def _before(uses: Sequence[Use], written: np.ndarray) -> tuple[int, ...]:
    """See `Buffer`."""
    most = max((use.lag or 0) for use in uses)
    found: dict[int, int] = {}
    for use in uses:
        for t in range(min(use.lag or 0, len(written))):
            row = int(use.rows[t])
            if found.setdefault(use.lag - t, row) != row:  # type: ignore[operator]
                raise _Unordered
    return tuple(found.get(d, int(written[0])) for d in range(1, most + 1))
