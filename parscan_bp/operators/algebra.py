"""How operators compose: A ⋄ B = B A, in the smallest structure that holds the product.

By default both operands are brought to their join and multiplied there. `_PAIRS` holds one row for
each structure that is closed under products, and one for each pair of different structures that
multiplies faster without that. Sparse products that would fill up are made in a denser structure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.arithmetic import einsum, matmul
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.conversions import convert, unpacked
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.identity import Identity
from parscan_bp.operators.lattice import PATTERNED, Structure, join, structure_of
from parscan_bp.operators.product import Product
from parscan_bp.operators.row import Row
from parscan_bp.operators.scaled import Scaled
from parscan_bp.operators.sparse import Sparse
from parscan_bp.operators.sparse_products import PAIRS as SPARSE_PAIRS
from parscan_bp.operators.sparse_products import same_channels
from parscan_bp.types import Array


def compose(a: Operator, b: Operator) -> Operator:
    """A ⋄ B = B A: first ``a``, then ``b``, map by map over their broadcast stacks.

    The product has the structure ``join(a, b)``: diagonals stay diagonal, and the identity gives
    the other operand itself. Sparse structures keep it until the product fills up; from there on
    it is in a denser one. A scaled product is normalised again.

    Args:
      a: applied first.
      b: applied second; its columns are the rows of ``a``.

    Returns:
      The product, ``compose(a, b).as_dense() == b.as_dense() @ a.as_dense()``.

    Raises:
      TypeError: if one operand is `MatrixFree`, or not an operator.
      ValueError: if sizes or stacks do not fit.

    Source: BPPSA section 3.1, the definition of ⋄.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense, Diagonal, compose
      >>> a, b = Diagonal(jnp.array([1.0, 10.0])), Dense(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
      >>> compose(a, b).matrix.tolist()
      [[1.0, 20.0], [3.0, 40.0]]
    """
    target = _check_pair(a, b)
    if isinstance(a, Identity):
        return b
    if isinstance(b, Identity):
        return a
    if target.scaled:
        return _compose_scaled(to_scaled(a), to_scaled(b))
    left, right = _operands(a, b, target)
    return _PAIRS[type(left), type(right)].product(left, right)


def compose_cost(a: Operator, b: Operator) -> Cost:
    """Work and traffic of ``compose(a, b)`` over the whole stack, from the shapes alone.

    Args:
      a: applied first; its leaves may be `jax.ShapeDtypeStruct`.
      b: applied second.

    Returns:
      Flops of the product in the structure it is made in; bytes of both operands and the product.
      Bringing an operand to the join is not counted. A scaled product adds four operations for
      each of its numbers, to normalise it; and four for each term of its sums, to align it.

    Raises:
      TypeError: if one operand is `MatrixFree`, or not an operator.
      ValueError: if sizes or stacks do not fit.

    Source: BPPSA section 3.6 (the cost of ⋄ between Jacobians).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense, Diagonal, compose_cost
      >>> compose_cost(Dense(jnp.zeros((4, 4))), Dense(jnp.zeros((4, 4)))).flops
      128
      >>> compose_cost(Diagonal(jnp.zeros(4)), Dense(jnp.zeros((4, 4)))).flops
      16
    """
    target = _check_pair(a, b)
    if isinstance(a, Identity) or isinstance(b, Identity):
        return Cost(0, 0)
    product = compose_shape(a, b)
    traffic = a.nbytes + b.nbytes + product.nbytes
    if isinstance(product, Scaled):
        left, right = (jax.eval_shape(to_scaled, op).mantissa for op in (a, b))
        inner = compose_cost(left, right).flops
        numbers = sum(math.prod(leaf.shape) for leaf, _ in product.mantissa.leaves())
        aligned = 0 if Diagonal in (type(left), type(right)) else 2 * inner
        return Cost(inner + aligned + 4 * numbers, traffic)
    maps = math.prod(np.broadcast_shapes(a.stack_shape, b.stack_shape))
    left, right = jax.eval_shape(lambda a, b: _operands(a, b, target), a, b)
    return Cost(maps * _PAIRS[type(left), type(right)].flops(left, right), traffic)


def compose_shape(a: Operator, b: Operator) -> Operator:
    """The structure, pattern, shapes and dtype of ``compose(a, b)``, without its numeric phase.

    Args:
      a: applied first; its leaves may be `jax.ShapeDtypeStruct`.
      b: applied second.

    Returns:
      The product, with `jax.ShapeDtypeStruct` leaves.

    Raises:
      TypeError: if one operand is `MatrixFree`, or not an operator.
      ValueError: if sizes or stacks do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Sparse, compose_shape
      >>> from parscan_bp.sparsity import Pattern
      >>> shift = Sparse(jnp.ones(4), Pattern.from_coordinates(range(4), range(1, 5), (5, 5)))
      >>> compose_shape(shift, shift).pattern.nnz
      3
    """
    target = _check_pair(a, b)
    identity = isinstance(a, Identity) or isinstance(b, Identity)
    if not identity and not target.scaled:
        left, right = jax.eval_shape(lambda a, b: _operands(a, b, target), a, b)
        row = _PAIRS[type(left), type(right)]
        if row.shape is not None:
            return row.shape(left, right)
    return jax.eval_shape(compose, a, b)


def to_structure(op: Operator, structure: Structure | type[Operator]) -> Operator:
    """The same maps in a larger structure.

    Args:
      op: the operator.
      structure: where to bring it: a `Structure`, or an operator class where that says it all.

    Returns:
      ``op`` itself if it has that structure.

    Raises:
      TypeError: if ``structure`` is neither of the two.
      ValueError: if the structure does not hold ``op``: a smaller one, blocks that do not fit, or
        a plain one for a `Scaled` operator, whose entries may leave the dtype's range.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense, Diagonal, to_structure
      >>> to_structure(Diagonal(jnp.array([1.0, 2.0])), Dense).matrix.tolist()
      [[1.0, 0.0], [0.0, 2.0]]
    """
    target = _as_structure(structure)
    given = structure_of(op)
    if given == target:
        return op
    plain = target._replace(scaled=False)
    if target.scaled:
        scaled = op if isinstance(op, Scaled) else to_scaled(op)
        return scaled.rearranged(lambda op: to_structure(op, plain))
    if given.scaled:
        raise ValueError(
            f"structure: got {target}, without the exponent that a Scaled operator needs; "
            "op.as_dense() gives the plain matrices"
        )
    if target.kind is Dense:
        return Dense(op.as_dense())
    if isinstance(op, Identity) and target.kind in (Diagonal, BlockDiagonal, *PATTERNED):
        op = Diagonal(jnp.ones(op.size, op.dtype))
    if target.kind is Diagonal and isinstance(op, Diagonal):
        return op
    if target.kind is BlockDiagonal:
        return _to_blocks(op, target.block)
    converted = convert(op, target.kind)
    if converted is not None:
        return converted
    raise ValueError(f"structure: got {target}, which does not hold every {given.kind.__name__}")


def to_scaled(op: Operator) -> Scaled:
    """The same maps with an exponent beside each number, in the smallest structure that allows it.

    The factors of a `Product` are scaled before they are multiplied.

    Args:
      op: any operator.

    Returns:
      A normalised `Scaled`; ``op`` itself if it is one.

    Raises:
      TypeError: if ``op`` is not an operator.

    Source: see `Scaled`.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Identity, to_scaled
      >>> scaled = to_scaled(Identity(2))
      >>> scaled.mantissa.diagonal.tolist(), scaled.exponent.tolist()
      ([0.5, 0.5], [1, 1])
    """
    if isinstance(op, Scaled):
        return op
    if isinstance(op, Product):
        return functools.reduce(_compose_scaled, map(to_scaled, reversed(op.factors)))
    if isinstance(op, (Dense, Diagonal, BlockDiagonal)):
        return Scaled.of(op)
    kind = Diagonal if isinstance(op, Identity) else Dense
    return Scaled.of(to_structure(op, kind))  # type: ignore[arg-type]


def identity_like(op: Operator) -> Identity:
    """The identity that composes with ``op`` from both sides, symbolic.

    `to_structure` gives it numbers, where a tree needs all nodes alike.

    Args:
      op: a square operator.

    Returns:
      `Identity` of the size and dtype of ``op``.

    Raises:
      ValueError: if ``op`` is not square.

    Source: BPPSA section 3.1, the identity value of ⋄.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense, identity_like
      >>> identity_like(Dense(jnp.zeros((7, 2, 2)))).size
      2
    """
    rows, cols = op.shape
    if rows != cols:
        raise ValueError(f"op: got {rows}x{cols} maps; square ones are wanted")
    return Identity(rows, op.dtype)


def _grouped(diagonal: Array, b: int) -> Array:
    return jnp.reshape(diagonal, (*diagonal.shape[:-1], diagonal.shape[-1] // b, b))


def _dense_after_blocks(a: BlockDiagonal, b: Dense) -> Dense:
    # Columns of B in groups: (m, k, b) times (k, b, b).
    columns = jnp.reshape(b.matrix, (*b.matrix.shape[:-1], b.matrix.shape[-1] // a.block, a.block))
    product = einsum("...mkb,...kbc->...mkc", columns, a.blocks)
    return Dense(product.reshape(*product.shape[:-2], math.prod(product.shape[-2:])))


def _blocks_after_dense(a: Dense, b: BlockDiagonal) -> Dense:
    # Rows of A in groups: (k, b, b) times (k, b, m).
    rows = jnp.reshape(
        a.matrix, (*a.matrix.shape[:-2], a.matrix.shape[-2] // b.block, b.block, a.matrix.shape[-1])
    )
    product = einsum("...kab,...kbm->...kam", b.blocks, rows)
    return Dense(
        product.reshape(*product.shape[:-3], math.prod(product.shape[-3:-1]), product.shape[-1])
    )


_PAIRS: dict[tuple[type[Operator], type[Operator]], Row] = {
    (Diagonal, Diagonal): Row(
        lambda a, b: Diagonal(jnp.multiply(b.diagonal, a.diagonal)),
        lambda a, b: a.shape[0],
    ),
    (BlockDiagonal, BlockDiagonal): Row(
        lambda a, b: BlockDiagonal(matmul(b.blocks, a.blocks)),
        lambda a, b: 2 * a.shape[0] * a.block**2,
        lambda a, b: a.block == b.block,
    ),
    (Dense, Dense): Row(
        lambda a, b: Dense(matmul(b.matrix, a.matrix)),
        lambda a, b: 2 * b.shape[0] * a.shape[0] * a.shape[1],
    ),
    # A diagonal scales columns when it comes first, rows when it comes second.
    (Diagonal, BlockDiagonal): Row(
        lambda a, b: BlockDiagonal(b.blocks * _grouped(a.diagonal, b.block)[..., None, :]),
        lambda a, b: b.shape[0] * b.block,
    ),
    (BlockDiagonal, Diagonal): Row(
        lambda a, b: BlockDiagonal(_grouped(b.diagonal, a.block)[..., None] * a.blocks),
        lambda a, b: a.shape[0] * a.block,
    ),
    (Diagonal, Dense): Row(
        lambda a, b: Dense(b.matrix * a.diagonal[..., None, :]),
        lambda a, b: math.prod(b.shape),
    ),
    (Dense, Diagonal): Row(
        lambda a, b: Dense(b.diagonal[..., None] * a.matrix),
        lambda a, b: math.prod(a.shape),
    ),
    (BlockDiagonal, Dense): Row(_dense_after_blocks, lambda a, b: 2 * math.prod(b.shape) * a.block),
    (Dense, BlockDiagonal): Row(_blocks_after_dense, lambda a, b: 2 * math.prod(a.shape) * b.block),
    **SPARSE_PAIRS,
}


def _operands(a: Operator, b: Operator, target: Structure) -> tuple[Operator, Operator]:
    """The pair as a row of `_PAIRS` takes it: as it is, at its join, or above it."""
    for left, right in _candidates(a, b, target):
        row = _PAIRS.get((type(left), type(right)))
        if row is not None and row.fits(left, right):
            return left, right
    raise AssertionError(f"no row for {type(a).__name__} and {type(b).__name__}")


def _candidates(a: Operator, b: Operator, target: Structure) -> Iterator[tuple[Operator, Operator]]:
    yield a, b
    if target.kind is not Dense:
        a, b = unpacked(a), unpacked(b)
        target = join(a, b)
        yield a, b
    # Blocks that fill up would be as full entry by entry.
    sparse = target.kind in PATTERNED and not same_channels(a, b)
    above = [Structure(Sparse)] if sparse else []
    for structure in (target, *above, Structure(Dense)):
        yield to_structure(a, structure), to_structure(b, structure)


def _compose_scaled(a: Scaled, b: Scaled) -> Scaled:
    target = join(a, b)
    if not any(isinstance(op.mantissa, Diagonal) for op in (a, b)):
        a, b = to_structure(a, target), to_structure(b, target)  # type: ignore[assignment]
    return b.after(a)


def _check_pair(a: Operator, b: Operator) -> Structure:
    """The join of two operators whose sizes and stacks fit."""
    for name, op in (("a", a), ("b", b)):
        if not isinstance(op, Operator):
            raise TypeError(f"{name}: got {type(op).__name__}; an Operator is wanted")
    target = join(a, b)
    if b.shape[1] != a.shape[0]:
        raise ValueError(
            f"compose(a, b) is B A: b, on the left, is {b.shape[0]}x{b.shape[1]} and a, on the "
            f"right, {a.shape[0]}x{a.shape[1]}; the columns of b must be the rows of a"
        )
    try:
        np.broadcast_shapes(a.stack_shape, b.stack_shape)
    except ValueError:
        raise ValueError(
            f"compose: the stacks {a.stack_shape} of a and {b.stack_shape} of b do not broadcast"
        ) from None
    return target


def _as_structure(structure: Structure | type[Operator]) -> Structure:
    if isinstance(structure, Structure):
        return structure
    if not (isinstance(structure, type) and issubclass(structure, Operator)):
        raise TypeError(f"structure: got {structure!r}; a Structure or operator class is wanted")
    if structure in (BlockDiagonal, Scaled):
        raise ValueError(
            f"structure: {structure.__name__} alone does not say which; "
            "use Structure(BlockDiagonal, block) or to_scaled(op)"
        )
    return Structure(structure)


def _to_blocks(op: Operator, block: int) -> Operator:
    """A diagonal or block-diagonal operator in blocks of a multiple of its own block size."""
    n = op.shape[0]
    own = op.block if isinstance(op, BlockDiagonal) else 1
    if not isinstance(op, (Diagonal, BlockDiagonal)) or block < 1 or block % own or n % block:
        raise ValueError(
            f"structure: blocks of order {block} do not hold a {type(op).__name__} of order {n}"
            + (f" with blocks of order {own}" if own > 1 else "")
        )

    # The new blocks are a stack axis of the operator inside each of them.
    def group(leaf, ndim):
        core = leaf.shape[leaf.ndim - ndim :]
        lead = leaf.shape[: leaf.ndim - ndim]
        return jnp.reshape(leaf, (*lead, n // block, core[0] * block // n, *core[1:]))

    return BlockDiagonal(op.map_leaves(group).as_dense())
