"""The lattice of structures: what two operators become when they are composed."""

from __future__ import annotations

import math

from parscan_bp.operators.base import Operator, Structure
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.explicit import Explicit
from parscan_bp.operators.identity import Identity


def structure_of(op: Operator) -> Structure:
    """The structure of an operator.

    Args:
      op: any operator.

    Returns:
      Its `Structure`.

    Raises:
      TypeError: if ``op`` is not an operator.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import BlockDiagonal, structure_of
      >>> structure_of(BlockDiagonal(jnp.zeros((3, 2, 2)))).block
      2
    """
    if not isinstance(op, Operator):
        raise TypeError(f"op: got {type(op).__name__}; an Operator is wanted")
    return op.structure


def join(a: Operator | Structure, b: Operator | Structure) -> Structure:
    """The structure of ``compose(a, b)``; for sparse ones the least that it may have.

    It is the least that holds both operands and products of what it holds; the classes say so
    themselves (`Operator.closed`, `patterned`, `held_by`):

    Identity < Diagonal < BlockDiagonal, Banded, Selection < ChannelDense < Sparse < Dense, where
    BlockDiagonal, Banded and ChannelDense meet in Sparse only, and the least that holds both is
    theirs. A `Convolution` is implicit: with every sparse structure it joins to `ChannelDense` or
    above. Two `BlockSparse` operators join to that, one with another structure to `Dense`. Block
    sizes b and b' join to their least common multiple, into whose blocks both fit, whatever the
    order in which three are joined. `Factored` and `Product` are not closed under
    products: two operators that are not the identity, one of them of these, join to `Dense`. An
    exponent is contagious, and is kept beside diagonals, blocks and dense matrices only.

    Whether a sparse product fills up depends on the patterns, which a `Structure` does not know:
    `compose` may return something above the join, and `compose_shape` tells.

    Args:
      a: operator or structure.
      b: operator or structure.

    Returns:
      The `Structure` of the product. The same for both orders, and associative.

    Raises:
      TypeError: if one of them is `MatrixFree`, which has no product, or not an operator.

    Source: parscan_bp's own; BPPSA section 3.3 is the case of one sparse format for all.

    Example:
      >>> from parscan_bp.operators import BlockDiagonal, Diagonal, Structure, join
      >>> join(Structure(Diagonal), Structure(BlockDiagonal, 4)) == Structure(BlockDiagonal, 4)
      True
    """
    first, second = (s if isinstance(s, Structure) else structure_of(s) for s in (a, b))
    for alone, other in ((first, second), (second, first)):
        if not alone.kind.composes:
            name = alone.kind.__name__
            raise TypeError(
                f"{name} has no product with {other.kind.__name__}; a matrix-free operator can "
                "only be applied to vectors. Use the sequential solver, Sweep(), or form the "
                "matrix: to_structure(op, Dense)"
            )
    if first.kind is Identity:
        return second
    if second.kind is Identity:
        return first
    scaled = first.scaled or second.scaled
    shared = [kind for kind in _products_in(first.kind) if kind in _products_in(second.kind)]
    kind = next((k for k in shared if issubclass(k, Explicit) or not scaled), Dense)
    blocks = math.lcm(first.block or 1, second.block or 1) if kind is BlockDiagonal else 0
    return Structure(kind, blocks, scaled)


def _products_in(kind: type[Operator]) -> list[type[Operator]]:
    """The structures that the product of one of these with another may have, the least first."""
    own = [kind] if kind.closed or kind.patterned else []
    return own + above(kind)


def above(kind: type[Operator]) -> list[type[Operator]]:
    """The structures that hold every operator of a kind, and those that hold these in turn."""
    further = [k for held in kind.held_by for k in above(held)]
    return list(dict.fromkeys([*kind.held_by, *further]))


def brought(op: Operator, kind: type[Operator]) -> Operator | None:
    """The same maps in a structure that holds them; ``None`` where no class says that it does."""
    if type(op) is kind:
        return op
    for held, convert in op.held_by.items():
        if kind is held or (kind not in op.held_by and kind in above(held)):
            return brought(convert(op), kind)
    return None
