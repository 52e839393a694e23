"""Diagonal dominance: what says beforehand that an iteration converges."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from parscan_bp.operators import Operator
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.types import Array


def contraction_of(operators: Sequence[Operator]) -> Array:
    """The largest sum of absolute values in a row of the maps, max_t |A_t| in the maximum norm.

    Args:
      operators: stacks of maps, or single ones.

    Returns:
      A number q; NaN where the absolute values of a map are not known. With q < 1 the bi-diagonal
      system is strictly diagonally dominant, and the error of Jacobi's iteration shrinks by q in
      every sweep. With q >= 1 it may still vanish: after n sweeps it does.

    Source: M. Naumov, 2017, section 3.2.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense
      >>> float(contraction_of([Dense(jnp.array([[[0.5, -0.5], [0.25, 0.0]]]))]))
      1.0
    """
    sums = []
    for operator in operators:
        size = operator.magnitude()
        if size is None:
            return jnp.full((), jnp.nan)
        ones = jnp.ones(size.shape[1], accumulation_dtype(size.dtype))
        sums.append(jnp.max(size.matvec(ones), initial=0).astype(float))
    return lax.stop_gradient(jnp.max(jnp.stack(sums), initial=0))
