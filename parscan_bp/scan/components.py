"""Tangents of carry leaves that do not all depend on each other: a system for each group that does.

A solver that multiplies Jacobians has 0 * NaN for a leaf that does not depend on another one whose
derivative is not finite, if both are of one matrix. So it gets the groups one after the other, what
is known of the former standing on the right-hand side of the next: a block triangular system,
solved by substitution. Its matrices are smaller, too. Reverse-mode is the transpose, and leaves out
the groups whose cotangents are zero.
"""

from __future__ import annotations

import dataclasses

import jax

from parscan_bp.linearise.active import Active
from parscan_bp.scan.augmented import augmented_solve
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.trees import add, replace_at
from parscan_bp.types import Array, PyTree


def solve_by_components(
    scan: LinearScan, active: Active, residuals: PyTree, b: PyTree
) -> tuple[list[Array], list[Array], list[Array]]:
    """``(d, last, dy)`` of the augmented system of a scan.

    Args:
      scan: the scan, whose carry leaves are in several `groups`, see `Reach.components`.
      active: what is differentiated.
      residuals, b: see `augmented`.
    """
    consts, init, xs, d, last, dy = b
    floats, primal = scan.body.float_carry, scan.primal(residuals)
    unread = dataclasses.replace(active, y=())
    entering: dict[int, Array] = {}
    d, last = list(d), list(last)
    for group in scan.groups:
        places = [floats.index(k) for k in group]
        part = [[values[i] for i in places] for values in (init, d, last)]
        if entering:
            part[1] = add(part[1], _pushed(primal, active, entering, places))
        first, right, end = part
        solve = augmented_solve(scan.restricted(group), unread)
        *_, moved, end, _ = solve(residuals, (consts, first, xs, right, end, []))
        d, last = replace_at(d, places, moved), replace_at(last, places, end)
        before_each = scan.before(first, moved)
        entering.update(zip(places, before_each, strict=True))
    if not active.y:
        return d, last, dy

    def outputs(steps, values):
        entering, xs = values
        call, at = primal.outputs(steps, active)
        return jax.jvp(call, at, (consts, entering, xs))[1][1]

    carries = [entering[i] for i in range(len(floats))]
    return d, last, add(dy, primal.map(outputs, (carries, xs)))


def _pushed(primal, active, entering, places):
    """What the tangents ``entering`` of some carry leaves add to those of others, step by step."""

    def push(steps, ts):
        call, (consts, floats, xs) = primal.outputs(steps, active)

        def new(moving):
            after, _ = call(consts, replace_at(floats, list(entering), moving), xs)
            return [after[i] for i in places]

        return jax.jvp(new, ([floats[i] for i in entering],), (ts,))[1]

    return primal.map(push, list(entering.values()))
