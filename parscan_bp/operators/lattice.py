"""The lattice of structures: what two operators become when they are composed."""

from __future__ import annotations

import math
from typing import NamedTuple

from parscan_bp.operators.banded import Banded
from parscan_bp.operators.base import Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.convolution import Convolution
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.identity import Identity
from parscan_bp.operators.matrix_free import MatrixFree
from parscan_bp.operators.scaled import Scaled
from parscan_bp.operators.selection import Selection
from parscan_bp.operators.sparse import Sparse

PATTERNED = (Banded, Selection, ChannelDense, Sparse)
"""Structures that `Sparse` holds and whose products may fill up."""


class Structure(NamedTuple):
    """What is known of an operator without its numbers.

    Args:
      kind: the operator class; of a `Scaled` one, that of its mantissa.
      block: order of the blocks of a `BlockDiagonal`, else 0.
      scaled: whether an exponent is kept beside the numbers.

    Example:
      >>> from parscan_bp.operators import Diagonal, Structure
      >>> Structure(Diagonal).scaled
      False
    """

    kind: type[Operator]
    block: int = 0
    scaled: bool = False


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
    if isinstance(op, Scaled):
        return structure_of(op.mantissa)._replace(scaled=True)
    return Structure(type(op), op.block if isinstance(op, BlockDiagonal) else 0)


def join(a: Operator | Structure, b: Operator | Structure) -> Structure:
    """The structure of ``compose(a, b)``; for sparse ones the least that it may have.

    Identity < Diagonal < BlockDiagonal, Banded, Selection < ChannelDense < Sparse < Dense, where
    BlockDiagonal, Banded and ChannelDense meet in Sparse only, and the least that holds both is
    theirs. A `Convolution` is implicit: with every sparse structure it joins to `ChannelDense` or
    above. Block sizes b and b' join to their least common multiple, into whose blocks both fit,
    whatever the order in which three are joined. `Factored` and `Product` are not closed under
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
    if MatrixFree in (first.kind, second.kind):
        raise TypeError(
            f"MatrixFree has no product with {_other(first, second).__name__}; a "
            "matrix-free operator can only be applied to vectors. Use the sequential solver, "
            "Sweep(), or form the matrix: to_structure(op, Dense)"
        )
    if first.kind is Identity:
        return second
    if second.kind is Identity:
        return first
    scaled = first.scaled or second.scaled
    kinds = {first.kind, second.kind}
    if kinds == {Diagonal}:
        return Structure(Diagonal, 0, scaled)
    if kinds <= {Diagonal, BlockDiagonal}:
        return Structure(BlockDiagonal, math.lcm(first.block or 1, second.block or 1), scaled)
    if not scaled:
        for kind, held in _HELD.items():
            if kinds <= held:
                return Structure(kind)
    return Structure(Dense, 0, scaled)


_HELD: dict[type[Operator], set[type[Operator]]] = {
    Banded: {Diagonal, Banded},
    Selection: {Diagonal, Selection},
    ChannelDense: {Diagonal, Selection, Convolution, ChannelDense},
    Sparse: {Diagonal, BlockDiagonal, Convolution, *PATTERNED},
}
"""What each sparse structure holds, the least first."""


def _other(first: Structure, second: Structure) -> type[Operator]:
    return second.kind if first.kind is MatrixFree else first.kind
