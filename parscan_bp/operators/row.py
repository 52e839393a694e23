"""How one pair of structures multiplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parscan_bp.operators.base import Operator


def _always(a: Operator, b: Operator) -> bool:
    return True


def pairs_that_meet(a: Operator, b: Operator) -> int:
    """Flops where each number of b multiplies the numbers of a row of a."""
    return 2 * b.nnz * a.nnz // max(a.shape[0], 1)


class Row(NamedTuple):
    """A row of the table of products: b a, first ``a``, then ``b``.

    Args:
      product: (a, b) -> b a.
      flops: of the product of one map with another.
      fits: whether two operators of these structures multiply in this way; if not, both are
        brought to a larger structure.
      shape: (a, b) -> the product with `jax.ShapeDtypeStruct` leaves, where finding that by tracing
        ``product`` would plan its numeric phase too.
    """

    product: Callable[..., Operator]
    flops: Callable[..., int] = pairs_that_meet
    fits: Callable[..., bool] = _always
    shape: Callable[..., Operator] | None = None
