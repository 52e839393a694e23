"""Tangents of a scan by the solution of its linear system, or of one for each group of leaves.

Carry leaves that do not all depend on each other have a system for each group that does.
A solver that multiplies Jacobians has 0 * NaN for a leaf that does not depend on another one whose
derivative is not finite, if both are of one matrix. So it gets the groups one after the other, what
is known of the former standing on the right-hand side of the next: a block triangular system,
solved by substitution. Its matrices are smaller, too. Reverse-mode is the transpose, and leaves out
the groups whose cotangents are zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from parscan_bp.jaxprs.obstacles import replicated_output
from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.linearise.body import Active
from parscan_bp.primitives.pushforward import is_forward_only
from parscan_bp.primitives.zeros import empty_of, filled, nonzero, tied_zeros
from parscan_bp.scan.augmented import augmented_solve
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.solvers.base import check_nothing_in_the_way
from parscan_bp.trees import add, replace_at
from parscan_bp.types import Array, PyTree


def solved_tangents(scan: LinearScan, primals, tangents, made) -> tuple[list[Any], list[Any]]:
    """Tangents of (carry, ys), and of the carry after every step.

    Args:
      scan: the leaves that move.
      primals: ``(args, extra)``, the arguments of the loop and what a given Jacobian closes over.
      tangents: of the args.
      made: ``(outs, after, kept)``, see `WithResiduals`.
    """
    body, (outs, after, kept) = scan.body, made
    given = [
        t if isinstance(t, SymbolicZero) else jnp.asarray(t, jnp.result_type(v))
        for t, v in zip(tangents, primals[0], strict=True)
    ]
    (args, extra), given, after, kept = vary_alike((primals, given, after, kept))
    active = scan.active(given)
    read = map(jax.typeof, [outs[body.num_carry + j] for j in active.y])
    check_nothing_in_the_way(replicated_output(read, map(jax.typeof, after)), scan.solver)
    residuals = (*body.split(args), after, extra)
    # Outputs of the step's own may have no cotangents: with them a pullback says what it is of.
    if kept is None and not active.y and not is_forward_only(args, given):
        scan.plan_pullback(residuals, active)
    b = _right_hand_side(scan, active, given, residuals, outs)
    if len(scan.groups) > 1:
        d, last, dy = _by_components(scan, active, residuals, b)
    else:
        *_, d, last, dy = augmented_solve(scan, active)(residuals, b, kept)
    carry_t = dict(zip(body.float_carry, last, strict=True))
    after_t = dict(zip(body.float_carry, d, strict=True))
    y_t = dict(zip(active.y, dy, strict=True))
    y_t.update({j: after_t[k] for j, k in body.forwarded.items() if k in after_t})
    n, (moved, _) = body.num_carry, scan.moved(nonzero(given))
    carry_t, after_t = ({k: t[k] for k in moved} for t in (carry_t, after_t))
    out_t = [(carry_t.get(k) if k < n else y_t.get(k - n)) for k in range(len(outs))]
    return filled(outs, out_t), filled(after, [after_t.get(k) for k in range(n)])


def _right_hand_side(scan, active, given, residuals, outs):
    """Of the augmented system: the tangents of the arguments, and zeros that depend on them."""
    body, (_, init, _, after, _) = scan.body, residuals
    t_consts, t_init, t_xs = body.split(given)
    known = [
        *active.of_consts(t_consts),
        *(t for t in t_init if not isinstance(t, SymbolicZero)),
        *active.of_x(t_xs),
    ]
    tie = empty_of(known)
    start = [
        tied_zeros(tie, init[k]) if isinstance(t_init[k], SymbolicZero) else t_init[k]
        for k in body.float_carry
    ]
    return (
        active.of_consts(t_consts),
        start,
        active.of_x(t_xs),
        [tied_zeros(tie, after[k]) for k in body.float_carry],
        [tied_zeros(tie, after[k], entry=True) for k in body.float_carry],
        [tied_zeros(tie, outs[body.num_carry + j]) for j in active.y],
    )


def _by_components(
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
