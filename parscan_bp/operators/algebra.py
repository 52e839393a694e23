"""How operators compose: A ⋄ B = B A, in the smallest structure that holds the product.

By default both operands are brought to their join and multiplied there. `_PAIRS` holds one row for
each structure that is closed under products, and one for each pair of different structures that
multiplies faster without that. Sparse products that would fill up are made in a denser structure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import jax
import numpy as np

from parscan_bp.operators.base import Cost, Operator, Structure
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.explicit import Explicit
from parscan_bp.operators.identity import Identity
from parscan_bp.operators.lattice import above, brought, join, structure_of
from parscan_bp.operators.pairs import Row, row_of, same_channels
from parscan_bp.operators.scaled import Scaled
from parscan_bp.operators.sparse import Sparse
from parscan_bp.types import PyTree


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
    if isinstance(a, Identity) or isinstance(b, Identity):
        return b if isinstance(a, Identity) else a
    if target.scaled:
        return _compose_scaled(to_scaled(a), to_scaled(b))
    row, left, right = _operands(a, b, target)
    return row.product(left, right)


def compose_cost(a: Operator, b: Operator) -> Cost:
    """Work and traffic of ``compose(a, b)`` over the whole stack, from the shapes alone.

    Args:
      a, b: as in `compose`; their leaves may be `jax.ShapeDtypeStruct`.

    Returns:
      Flops of the product in the structure it is made in; bytes of both operands and the product.
      Bringing an operand to the join is not counted. A scaled product adds four operations for
      each of its numbers, to normalise it; and four for each term of its sums, to align it.

    Raises:
      As `compose`.

    Source: BPPSA section 3.6 (the cost of ⋄ between Jacobians).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Dense, Diagonal, compose_cost
      >>> compose_cost(Dense(jnp.zeros((4, 4))), Dense(jnp.zeros((4, 4)))).flops
      128
      >>> compose_cost(Diagonal(jnp.zeros(4)), Dense(jnp.zeros((4, 4)))).flops
      16
    """
    return _cost(a, b, compose_shape(a, b))


def _cost(a: Operator, b: Operator, product: Operator) -> Cost:
    """`compose_cost`, given the product."""
    if isinstance(a, Identity) or isinstance(b, Identity):
        return Cost(0, 0)
    target = join(a, b)
    traffic = a.nbytes + b.nbytes + product.nbytes
    if isinstance(product, Scaled):
        left, right = (jax.eval_shape(to_scaled, op).mantissa for op in (a, b))
        inner = compose_cost(left, right).flops
        aligned = 0 if left.elementwise or right.elementwise else 2 * inner
        return Cost(inner + aligned + 4 * product.mantissa.numbers.size, traffic)
    maps = math.prod(np.broadcast_shapes(a.stack_shape, b.stack_shape))
    row, left, right = _abstract_operands(a, b, target)
    return Cost(maps * row.flops(left, right), traffic)


def compose_shape(a: Operator, b: Operator) -> Operator:
    """The structure, pattern, shapes and dtype of ``compose(a, b)``, without its numeric phase.

    Args:
      a, b: as in `compose`; their leaves may be `jax.ShapeDtypeStruct`.

    Returns:
      The product, with `jax.ShapeDtypeStruct` leaves.

    Raises:
      As `compose`.

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
        row, left, right = _abstract_operands(a, b, target)
        if row.shape is not None:
            return row.shape(left, right)
    return jax.eval_shape(compose, a, b)


def product_and_cost(a: Operator, b: Operator) -> tuple[Operator, Cost]:
    """`compose_shape` and `compose_cost`; equal pairs, as in a net of equal blocks, once."""
    return _looked_at(*_abstract(a), *_abstract(b))


def _abstract(op: Operator) -> tuple[PyTree, tuple[jax.ShapeDtypeStruct, ...]]:
    leaves, treedef = jax.tree.flatten(op)
    return treedef, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)


@functools.lru_cache(maxsize=4096)
def _looked_at(a_def, a_leaves, b_def, b_leaves) -> tuple[Operator, Cost]:
    a, b = jax.tree.unflatten(a_def, a_leaves), jax.tree.unflatten(b_def, b_leaves)
    product = compose_shape(a, b)
    return product, _cost(a, b, product)


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
    if target.scaled:
        plain = target._replace(scaled=False)
        return to_scaled(op).rearranged(lambda op: to_structure(op, plain))
    if given.scaled:
        raise ValueError(
            f"structure: got {target}, without the exponent that a Scaled operator needs; "
            "op.as_dense() gives the plain matrices"
        )
    if target.kind is Dense:
        return Dense(op.as_dense())
    found = brought(op, target.kind)
    if found is None:
        raise ValueError(
            f"structure: got {target}, which does not hold every {given.kind.__name__}"
        )
    return found.regrouped(target.block) if isinstance(found, BlockDiagonal) else found


def for_trees(op: Operator) -> Operator:
    """The same maps as what a tree multiplies: in the least structure closed under composition.

    Args:
      op: an operator that composes.

    Returns:
      ``op`` itself if it is `closed`; `Dense` where its class names no such structure.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Banded, for_trees
      >>> for_trees(Banded(jnp.ones((1, 3)), 0)).matrix.shape
      (3, 3)
    """
    return _least(op, lambda kind: kind.closed)


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
    structure_of(op)
    own = op.scaled()
    if own is None:
        own = Scaled.of(_least(op, lambda kind: issubclass(kind, Explicit)))
    return own  # type: ignore[return-value]


def _least(op: Operator, fits: Callable[[type[Operator]], bool]) -> Operator:
    """The same maps in the least structure that fits and is known to hold them, or dense."""
    kind = next((kind for kind in (type(op), *above(type(op))) if fits(kind)), None)
    found = None if kind is None else brought(op, kind)
    return Dense(op.as_dense()) if found is None else found


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


def _operands(a: Operator, b: Operator, target: Structure) -> tuple[Row, Operator, Operator]:
    """A row of the table and the pair as it takes it: as it is, at its join, or above it."""
    for left, right in _candidates(a, b, target):
        row = row_of(left, right)
        if row is not None:
            return row, left, right
    raise AssertionError(f"no row for {type(a).__name__} and {type(b).__name__}")


def _abstract_operands(a, b, target) -> tuple[Row, Operator, Operator]:
    """`_operands` of operators whose leaves may be shapes and dtypes alone."""
    rows = []

    def operands(a, b):
        row, *both = _operands(a, b, target)
        rows.append(row)
        return both

    left, right = jax.eval_shape(operands, a, b)
    return rows[0], left, right


def _candidates(a: Operator, b: Operator, target: Structure) -> Iterator[tuple[Operator, Operator]]:
    yield a, b
    if target.kind is not Dense:
        a, b = a.unpacked(), b.unpacked()
        target = join(a, b)
        yield a, b
    # Blocks that fill up would be as full entry by entry.
    held = target.kind.patterned and Sparse in (target.kind, *above(target.kind))
    sparse = held and not same_channels(a, b)
    for structure in (target, *([Structure(Sparse)] if sparse else []), Structure(Dense)):
        yield to_structure(a, structure), to_structure(b, structure)


def _compose_scaled(a: Scaled, b: Scaled) -> Scaled:
    target = join(a, b)
    if not (a.mantissa.elementwise or b.mantissa.elementwise):
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
