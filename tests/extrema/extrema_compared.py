"""A case against `lax.scan`, in its own precision and in double."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from tests.extrema.extrema_steps import SOLVERS, Case

TOLERANCE = {"float32": 2e-3, "float64": 1e-9}
# As users have it, whatever the rest of the run does: what is rounded twice is seen in such code.
OPTIMISED = {"xla_backend_optimization_level": 3}


def derivatives(case: Case, scan: Any) -> Any:
    """The compiled gradient of a case and, of every third, jvp and Hessian-vector product."""
    loss = case.loss(scan)

    def all_of(*args):
        if case.seed % 3:
            return jax.grad(loss, (0, 1, 2))(*args)
        along = tuple(jax.numpy.cos(a) for a in args)
        grad = jax.grad(loss, (0, 1, 2))
        return jax.jvp(loss, args, along)[1], jax.jvp(grad, args, along)

    return jax.jit(all_of, compiler_options=OPTIMISED)


def apart(got: Any, want: Any) -> float:
    """The largest difference, as a part of the largest entry of each array."""
    found = [0.0]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, float), np.asarray(b, float)
        if np.isfinite(a).tolist() != np.isfinite(b).tolist():
            return float("inf")
        a, b = np.nan_to_num(a, posinf=0, neginf=0), np.nan_to_num(b, posinf=0, neginf=0)
        found.append(float(np.max(np.abs(a - b)) / (1e-3 + np.max(np.abs(b)))))
    return max(found)


def tried(case: Case, points: int = 1) -> list[float | None]:
    """How far off a case is at each starting point.

    ``None`` where `lax.scan` itself is as far off in this precision as would be told.
    """
    ours = derivatives(case, functools.partial(pb.scan, solver=SOLVERS[case.solver]))
    theirs, most = derivatives(case, lax.scan), TOLERANCE[case.dtype]
    found: list[float | None] = []
    for point in range(points):
        args = case.arguments(case.dtype, point)
        want = theirs(*args)
        error = apart(got := ours(*args), want)
        if error > most:
            # Of a custom rule lax.scan has other second derivatives at a kink than a Python loop.
            error = apart(got, derivatives(case, python_loop)(*args))
        if error > most and case.dtype == "float32" and jax.config.jax_enable_x64:
            exact = theirs(*case.arguments("float64", point))
            error = None if apart(want, exact) > most else error
        found.append(error)
    return found
