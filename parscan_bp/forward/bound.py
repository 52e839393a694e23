"""The bound of a trajectory's error: what is proved, by matrices.

With e = d + s, where L d = r, and D = max |d_t|,

    s_t = J_t s_{t-1} + q_t,     |q_t| <= M |e_{t-1}|^2 / 2 + u,

in the max norm, with M on the second derivative of the step, and u its rounding, which is measured
(`parscan_bp.forward.rounding`): nothing else is taken to be, without a proof. With
G >= max_t sum_j |J_t ... J_{j+1}|, the largest that L^-1 makes of 1,

    |s| <= G (M E^2 / 2 + u) for all |e| <= E,

so that E with E = D + G (M E^2 / 2 + u) bounds every e_t, by induction over t:

    |e| <= 2 (D + G u) / (1 + sqrt(1 - 2 G M (D + G u)))    if 2 G M (D + G u) <= 1,

and there is no such E otherwise. M holds in a tube around x that has to contain E.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from parscan_bp.forward.base import Carry, Recurrence, over_steps
from parscan_bp.forward.certificate import (
    Certificate,
    magnitude,
    with_true_derivative,
)
from parscan_bp.forward.intervals import Interval, around, evaluate_interval
from parscan_bp.forward.rounding import roundings_of
from parscan_bp.originals import lax_scan
from parscan_bp.planner.plan import DEFAULT_MEMORY_LIMIT
from parscan_bp.types import Array


def bound(recurrence: Recurrence, states: Carry, residuals: Carry, radius: Array) -> Certificate:
    """A bound of the error of a trajectory.

    It forms every Jacobian, joined over all leaves and rows of the carry, and multiplies them in a
    tree: n products of matrices of that order.

    Args:
      recurrence: the recurrence.
      states: x_1..x_n.
      residuals: r_1..r_n.
      radius: of the tube, in which M is sought: the error that is allowed.

    Returns:
      The `Certificate`. The error is the bound without u; the floor what u adds to it, infinite
      where there is no E with it.

    Raises:
      NotImplementedError: naming the primitive of whose second derivative nothing is known.
      ValueError: if the Jacobians take more than 4 GiB.

    Source: the Newton-Kantorovich theorem for a lower bi-diagonal system; G by a tree of products
    of norms.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.forward import Recurrence
      >>> half = Recurrence(lambda x, u: 0.5 * x + u, jnp.zeros(()), jnp.ones(9), 9)
      >>> wrong = jnp.zeros(9).at[0].set(1.0)
      >>> round(float(bound(half, wrong, half.residuals(wrong), jnp.full((), 4.0)).error), 3)
      1.996
    """
    entering = recurrence.entering(states)
    step, join = with_true_derivative(recurrence), lambda tree: ravel_pytree(tree)[0]
    order, dtype = join(recurrence.init).size, join(recurrence.init).dtype
    _check_memory(recurrence.length * order**2 * dtype.itemsize)
    apart = ravel_pytree(recurrence.init)[1]

    def jacobian(x, u):
        return jax.jacfwd(lambda x: join(step(apart(x), u)))(join(x))

    J = over_steps(jacobian, recurrence.length, entering, recurrence.inputs)  # (n, order, order)
    r = jax.vmap(join)(residuals)
    push = lambda d, values: (d := values[0] @ d + values[1], d)  # noqa: E731
    _, d = lax_scan(push, jnp.zeros_like(r[0]), (J, r))
    D, G, u = magnitude(d), _gain(J), magnitude(roundings_of(recurrence, states, residuals))
    M = _curvature(recurrence, step, entering, radius)

    def enclosed(a):
        """The least E with E = a + G M E^2 / 2, infinite if there is none in the tube."""
        E = 2 * a / (1 + jnp.sqrt(1 - 2 * G * M * a))
        return jnp.where((2 * G * M * a <= 1) & (E <= radius), E, jnp.inf)

    error, whole = enclosed(D), enclosed(D + G * u)
    nothing = jnp.isnan(D) | jnp.isnan(G) | jnp.isnan(M)
    floor = jnp.where(jnp.isfinite(whole), whole - error, jnp.inf)
    return Certificate(jnp.where(nothing, jnp.nan, error), floor)


def _check_memory(size: int) -> None:
    if size > DEFAULT_MEMORY_LIMIT:
        raise ValueError(
            f"certify: 'bound' forms the Jacobians of all steps, {size / 1e9:.1f} GB, more than "
            f"{DEFAULT_MEMORY_LIMIT / 1e9:.1f} GB; 'estimate' needs none"
        )


def _norm(A: Array) -> Array:
    """That of matrices in the max norm: their largest sum along a row."""
    return jnp.max(jnp.sum(jnp.abs(A), axis=-1), axis=-1, initial=0)


def _gain(J: Array) -> Array:
    """G of a stack of matrices, by a tree of the products of neighbouring stretches.

    For a stretch with the product P: ``all`` is |P|, ``reached`` at least the largest norm of the
    products of its first steps, ``end`` of the sum over the steps j of |what follows j| at its
    end, and ``top`` the largest of these sums anywhere. Of two stretches A, B in this order,

        reached = max(reached_A, reached_B |A|),     end = |B| end_A + end_B,
        top = max(top_A, reached_B end_A + top_B).
    """
    ones = jnp.ones(J.shape[0], J.dtype)
    P, reached, end, top = J, jnp.maximum(1, _norm(J)), ones, ones
    # Steps that do nothing make it a power of two.
    extra = 2 ** math.ceil(math.log2(J.shape[0])) - J.shape[0]
    eye = jnp.broadcast_to(jnp.eye(J.shape[-1], dtype=J.dtype), (extra, *J.shape[1:]))
    P = jnp.concatenate([P, eye])
    reached = jnp.concatenate([reached, jnp.ones(extra, J.dtype)])
    end, top = (jnp.concatenate([v, jnp.zeros(extra, J.dtype)]) for v in (end, top))
    while len(P) > 1:
        A, B = P[0::2], P[1::2]
        a, b = _norm(A), _norm(B)
        later = reached[1::2]
        top = jnp.maximum(top[0::2], later * end[0::2] + top[1::2])
        reached, end = jnp.maximum(reached[0::2], later * a), b * end[0::2] + end[1::2]
        P = jnp.matmul(B, A, precision=lax.Precision.HIGHEST)
    return top[0]


def _curvature(recurrence: Recurrence, step, entering: Carry, radius: Array) -> Array:
    """M: the largest of |f''(x)[v, w]| for |v|, |w| <= 1 and x in the tube, by intervals."""

    def second(x, v, w, u):
        first = lambda x: jax.jvp(lambda x: step(x, u), (x,), (v,))[1]  # noqa: E731
        return jax.jvp(first, (x,), (w,))[1]

    one = jax.tree.map(jnp.ones_like, recurrence.init)
    u = jax.tree.map(lambda a: a[0], recurrence.inputs)
    program = jax.make_jaxpr(second)(recurrence.init, one, one, u)

    def largest_of_step(x, u):
        ball = [around(a, radius.astype(a.dtype)) for a in jax.tree.leaves(x)]
        unit = [Interval(-a, a) for a in jax.tree.leaves(one)]
        found = evaluate_interval(program, [*ball, *unit, *unit, *jax.tree.leaves(u)])
        return magnitude([(a.low, a.high) if isinstance(a, Interval) else a for a in found])

    return magnitude(over_steps(largest_of_step, recurrence.length, entering, recurrence.inputs))
