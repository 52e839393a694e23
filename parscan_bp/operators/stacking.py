"""Stacks made of operators: one more scanned axis, or a longer one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.algebra import to_structure
from parscan_bp.operators.base import Operator
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.identity import Identity
from parscan_bp.operators.lattice import brought, join, structure_of
from parscan_bp.types import Array


def stack(ops: Sequence[Operator]) -> Operator:
    """One stack of several operators, along a new scanned axis in front.

    Operators of one structure and size keep it; others are first brought to their join, and sparse
    ones whose patterns differ become dense. Leaves
    that are shared by batch entries are broadcast. A leaf that is one and the same array in every
    operator stays shared by the scanned axis, unless that leaves nothing to stack: the weights of
    a recurrent cell are not copied for each step. If it has batch axes, it has a scanned axis of
    size 1. Identities alone have no arrays, and their stack is the identity.

    Args:
      ops: operators of one shape.

    Returns:
      An operator whose scanned axis has ``len(ops)`` entries.

    Raises:
      TypeError: if one of them is not an operator, or different ones include a `MatrixFree`.
      ValueError: if there are none, or their shapes or stacks do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal, Identity, stack
      >>> stack([Diagonal(jnp.array([1.0, 2.0])), Identity(2)]).diagonal.tolist()
      [[1.0, 2.0], [1.0, 1.0]]
    """
    ops = _alike(ops)
    batch = _broadcast([op.stack_shape for op in ops])

    def combine(leaves, cores):
        return jnp.stack(
            [jnp.broadcast_to(leaf, batch + core) for leaf, core in zip(leaves, cores, strict=True)]
        )

    def once(leaf, ndim):
        missing = len(batch) - (leaf.ndim - ndim)
        return leaf if leaf.ndim == ndim else jnp.expand_dims(leaf, range(1 + missing))

    merged = _merge(ops, combine, once)
    return merged if merged.length == len(ops) else _merge(ops, combine)


def concatenate(ops: Sequence[Operator]) -> Operator:
    """One stack of several, end to end along their scanned axis.

    Structures and shared leaves are treated as by `stack`.

    Args:
      ops: operators of one shape, each with a scanned axis and the same number of batch axes.

    Returns:
      An operator whose length is the sum of theirs.

    Raises:
      TypeError: if one of them is not an operator, or different ones include a `MatrixFree`.
      ValueError: if there are none, one has no scanned axis, or shapes or stacks do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Diagonal, concatenate
      >>> concatenate([Diagonal(jnp.ones((2, 3))), Diagonal(jnp.ones((5, 3)))]).length
      7
    """
    given = list(ops)
    for k, op in enumerate(given):
        if isinstance(op, Operator) and op.length is None:
            raise ValueError(
                f"ops[{k}]: every leaf of this {type(op).__name__} is shared, so its length is "
                "unknown; use stack, or give it one with op.broadcast(length)"
            )
    ops = _alike([op.aligned() if isinstance(op, Operator) else op for op in given])
    ndims = {len(op.stack_shape) for op in ops}
    if len(ndims) > 1:
        raise ValueError(f"ops: got stacks {[op.stack_shape for op in ops]}; equal ranks needed")
    batch = _broadcast([op.stack_shape[1:] for op in ops])
    lengths = [op.stack_shape[0] for op in ops]

    def combine(leaves, cores):
        parts = zip(leaves, cores, lengths, strict=True)
        return jnp.concatenate(
            [jnp.broadcast_to(leaf, (n, *batch, *core)) for leaf, core, n in parts]
        )

    return _merge(ops, combine, lambda leaf, ndim: leaf if leaf.ndim == ndim else None)


def _merge(
    ops: Sequence[Operator],
    combine: Callable[[list[Array], list[tuple[int, ...]]], Array],
    once: Callable[[Array, int], Array | None] = lambda leaf, ndim: None,
) -> Operator:
    """``combine`` on corresponding leaves, which come with their core shapes; of one array that all
    operands hold ``once`` of it and its number of core axes, unless that is ``None``."""
    columns = zip(*[op.leaves() for op in ops], strict=True)
    new = []
    for column in columns:
        leaves = [leaf for leaf, _ in column]
        cores = [leaf.shape[leaf.ndim - ndim :] for leaf, ndim in column]
        same = once(*column[0]) if all(leaf is leaves[0] for leaf in leaves) else None
        new.append(combine(leaves, cores) if same is None else same)
    each = iter(new)
    return ops[0].map_leaves(lambda leaf, ndim: next(each))


def _alike(ops: Sequence[Operator]) -> list[Operator]:
    """The operators in one structure and with leaves of the same core shapes."""
    ops = list(ops)
    if not ops:
        raise ValueError("ops: got none; at least one operator is wanted")
    for k, op in enumerate(ops):
        if not isinstance(op, Operator):
            raise TypeError(f"ops[{k}]: got {type(op).__name__}; an Operator is wanted")
        if op.shape != ops[0].shape:
            raise ValueError(f"ops[{k}]: got {op.shape}; ops[0] is {ops[0].shape}")
    if all(_skeleton(op) == _skeleton(ops[0]) for op in ops):
        return ops
    target = functools.reduce(join, map(structure_of, ops))
    # An identity takes the others' dtype and not the other way round.
    dtypes = [op.dtype for op in ops if not isinstance(op, Identity)]
    dtype = jnp.result_type(*dtypes) if dtypes else ops[0].dtype
    ops = [Identity(op.size, dtype) if isinstance(op, Identity) else op for op in ops]
    unheld = any(brought(op, target.kind) is None for op in ops if isinstance(op, Identity))
    if unheld:  # as by a structure from outside that does not say that it holds the identity
        target = target._replace(kind=Dense, block=0)
    converted = [to_structure(op, target) for op in ops]
    if any(_skeleton(op) != _skeleton(converted[0]) for op in converted):
        # Sparse ones of different patterns have numbers in different places.
        return [to_structure(op, Dense) for op in converted]
    return converted


def _skeleton(op: Operator) -> tuple:
    """Equal for two operators that stack leaf by leaf."""
    cores = tuple(leaf.shape[leaf.ndim - ndim :] for leaf, ndim in op.leaves())
    structure = jax.tree.structure(op)
    return hash(structure), structure, cores  # see `trees.same_structure`


def _broadcast(stacks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*stacks)
    except ValueError:
        raise ValueError(f"ops: the batch axes {list(stacks)} do not broadcast") from None
