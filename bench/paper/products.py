"""Products that share their parts: a map applied many times, a window that slides.

Products are associative, so a part that occurs again is multiplied once: the log2 n levels of
a tree over n equal maps are one product each, and windows that overlap share the products of
their halves. That takes fewer operations, on one core too.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from parscan_bp.operators.algebra import compose, identity_like, to_structure
from parscan_bp.operators.base import Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.lattice import structure_of
from parscan_bp.operators.scaled import Scaled
from parscan_bp.originals import lax_scan

CLOSED = (Dense, Diagonal, BlockDiagonal, Scaled)
"""Structures whose products have the same leaves again, so that one can replace another."""

Closed = TypeVar("Closed", bound=Operator)


def power(op: Operator, exponent: int) -> Operator:
    """A^exponent, by repeated squaring: at most 2 log2(exponent) products.

    The adjoint of a linear step with constant coefficients, or of a stack of layers with tied
    weights, over ``exponent`` steps. Of a `Scaled` operator no power overflows.

    Args:
      op: a square operator of any structure that composes; a structure that fills up grows.
      exponent: at least 0, a Python int.

    Returns:
      The power; the symbolic `Identity` for exponent 0.

    Raises:
      TypeError: if ``op`` is matrix-free.
      ValueError: if ``op`` is not square, or ``exponent`` is no int of at least 0.

    Source: the up-sweep of BPPSA Algorithm 1 where all nodes of a level are equal.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Banded
      >>> from bench.paper.products import power
      >>> step = Banded(jnp.ones((3, 4)), lower=1)
      >>> power(step, 3).as_dense()[0].tolist()
      [4.0, 5.0, 3.0, 1.0]
    """
    if isinstance(exponent, bool) or not isinstance(exponent, int) or exponent < 0:
        raise ValueError(f"exponent: got {exponent!r}; a Python int of at least 0 is wanted")
    total: Operator = identity_like(op)
    while exponent:
        if exponent % 2:
            total = compose(total, op)
        exponent //= 2
        if exponent:
            op = compose(op, op)
    return total


def sliding_products(op: Closed, window: int) -> Closed:
    """A_k A_(k+1) ... A_(k+window-1) for every k: the adjoint of every window of a chain.

    The chain is cut into blocks of ``window`` maps. A window is the end of one block times the
    beginning of the next; with the products of all ends and all beginnings that is three
    products for each window, however long it is.

    Args:
      op: a stack of n square maps, its scanned axis leading: transposed Jacobians A_1 ... A_n.
      window: maps in a window, 1 to n.

    Returns:
      The stack of n - window + 1 products.

    Raises:
      TypeError: if ``op`` has a structure that is not closed under products.
      ValueError: if it has no scanned axis, is not square, or has fewer maps than ``window``.

    Source: van Herk, 1992, and Gil and Werman, 1993, for any associative product.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal
      >>> from bench.paper.products import sliding_products
      >>> maps = Diagonal(jnp.array([[1.0], [2.0], [3.0], [4.0]]))
      >>> sliding_products(maps, 3).diagonal.tolist()
      [[6.0], [24.0]]
    """
    length = check_closed_stack(op)
    if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= length:
        raise ValueError(f"window: got {window!r}; an int from 1 to {length}, the maps, is wanted")
    blocks = -(-length // window)
    # (window, blocks, ...): the place in a block leads, all blocks advance together.
    steps = _stack_axes(append_identities(op, blocks * window - length), blocks, window)
    identity = identity_stack(jax.tree.map(lambda a: a[0], steps), blocks)

    def begin(before, a):
        return compose(a, before), before

    def end(after, a):
        product = compose(after, a)
        return product, product

    # before[j] is the product of the j first maps of a block, after[j] that of all from j on.
    _, before = lax_scan(begin, identity, steps)
    _, after = lax_scan(end, identity, steps, reverse=True)
    after, before = (_one_axis(tree) for tree in (after, before))
    count = length - window + 1
    # The window from k on enters the next block with as many maps as it misses of its own.
    following = jax.tree.map(
        lambda a, i: jnp.concatenate([a[window:], i])[:count], before, identity_stack(op, window)
    )
    return compose(following, jax.tree.map(lambda a: a[:count], after))  # type: ignore[return-value]


def check_closed_stack(op: Operator) -> int:
    """The length of a stack of square maps of a closed structure.

    Raises:
      TypeError: if the structure is not closed.
      ValueError: if there is no scanned axis, or the maps are not square.
    """
    if not isinstance(op, CLOSED):
        raise TypeError(
            f"op: got {type(op).__name__}; its products may have another structure. One of "
            f"{', '.join(kind.__name__ for kind in CLOSED)} is wanted, as to_structure makes them"
        )
    identity_like(op)
    if op.length is None:
        raise ValueError("op: every leaf is shared; a leaf with a leading scanned axis is wanted")
    return op.length


def identity_stack(op: Closed, length: int) -> Closed:
    """``length`` identities with the structure, batch axes and dtype of the stack ``op``."""
    one = to_structure(identity_like(op), structure_of(op))
    stack = (length, *op.stack_shape[1:])
    spread = lambda leaf, ndim: jnp.broadcast_to(leaf, stack + leaf.shape[leaf.ndim - ndim :])  # noqa: E731
    return one.map_leaves(spread)  # type: ignore[return-value]


def append_identities(op: Closed, count: int) -> Closed:
    """The stack with all leaves at full size, ``count`` identities after its last map."""
    assert op.length is not None
    full = op.broadcast(op.length)
    return jax.tree.map(lambda *a: jnp.concatenate(a), full, identity_stack(op, count))


def _stack_axes(op: Closed, blocks: int, window: int) -> Closed:
    return jax.tree.map(lambda a: jnp.swapaxes(a.reshape(blocks, window, *a.shape[1:]), 0, 1), op)


def _one_axis(op: Closed) -> Closed:
    return jax.tree.map(
        lambda a: jnp.swapaxes(a, 0, 1).reshape(a.shape[0] * a.shape[1], *a.shape[2:]), op
    )
