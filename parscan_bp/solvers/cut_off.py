"""How far a solution of a uniform system may be from the true one, from its residual.

With s = g + A lambda - lambda, the residual of what was found, the error e of lambda obeys the
same system, e_t = A_{t+1} e_{t+1} + s_t. Windows of k steps bound it side by side: with absolute
values in the place of A,

    |e| at the end of a window <= own + growth * |e at its beginning|,

where own is what s makes inside the window, and growth the largest row sum of the product of
absolute values over it. Nothing is assumed of the system.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from parscan_bp.operators import Operator
from parscan_bp.originals import lax_scan
from parscan_bp.types import Array


def bound_on_error(magnitude: Operator, residual: Array, window: int) -> Array:
    """A bound on max |e|, to first order of rounding.

    Args:
      magnitude: the stack of n operators |A|, the first traversed one first.
      residual: |s| of the n vectors they make, stacked alike, (n, *batch, features).
      window: k, the steps of a window.

    Returns:
      A number.

    Source: the recurrence of windows is that of block Gauss-Seidel in norms; see also Naumov, 2017,
    section 3.2.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal
      >>> residual = jnp.array([[1.0], [0.0], [0.0], [0.0]])
      >>> float(bound_on_error(Diagonal(jnp.full((4, 1), 0.5)), residual, 2))
      1.0
    """
    n = residual.shape[0]
    size = min(window, n)
    count = -(-n // size)
    # What is missing of the last window are steps of zero.
    pad = lambda a: jnp.concatenate([a, jnp.zeros_like(a[: count * size - n])])  # noqa: E731

    def windows(a):
        return jnp.swapaxes(pad(a).reshape(count, size, *a.shape[1:]), 0, 1)

    leaves, rebuild = magnitude.unstack()
    leaves, residual = jax.tree.map(windows, (leaves, residual))
    multiply = jax.vmap(lambda leaves, v: rebuild(leaves).matvec(v))
    top = lambda a: jnp.max(a, tuple(range(1, a.ndim)), initial=0)  # noqa: E731

    def step(carry, t):
        own, growth, most_own, most_growth = carry
        leaves, s = t
        own = multiply(leaves, own) + s
        growth = multiply(leaves, growth)
        most = jnp.maximum(most_own, top(own)), jnp.maximum(most_growth, top(growth))
        return (own, growth, *most), None

    zero = jnp.zeros_like(residual[0])
    start = (zero, jnp.ones_like(zero), top(zero), top(zero))
    (own, growth, most_own, most_growth), _ = lax_scan(step, start, (leaves, residual))

    def join(e, window):
        own, growth, most_own, most_growth = window
        return own + growth * e, most_own + most_growth * e

    each = (top(own), top(growth), most_own, most_growth)
    return jnp.max(lax_scan(join, jnp.zeros_like(each[0][0]), each)[1], initial=0)
