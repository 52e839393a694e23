"""Tangents of a scan by the solution of its linear system."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from parscan_bp.jaxprs.obstacles import replicated_output
from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.primitives.zeros import empty_of, filled, nonzero, tied_zeros
from parscan_bp.scan.augmented import augmented_solve
from parscan_bp.scan.components import solve_by_components
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.solvers.base import check_nothing_in_the_way


def solved_tangents(scan: LinearScan, primals, tangents, made) -> tuple[list[Any], list[Any]]:
    """Tangents of (carry, ys), and of the carry after every step.

    Args:
      scan: the leaves that move.
      primals: ``(args, extra)``, the arguments of the loop and what a given Jacobian closes over.
      tangents: of the args.
      made: ``(outs, after, kept)``, see `Recorded`.
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
    b = _right_hand_side(scan, active, given, residuals, outs)
    if len(scan.groups) > 1:
        d, last, dy = solve_by_components(scan, active, residuals, b)
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
