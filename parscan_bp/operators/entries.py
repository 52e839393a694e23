"""Which weight stands where in a matrix: explicit Jacobians, of pruned weights too."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import jax
import numpy as np

from parscan_bp.operators.base import Operator
from parscan_bp.operators.convolution import Convolution
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.sparse import Sparse, fill_in_coordinates
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.sparsity.windows import Axis, window_pattern
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Entries:
    """The places of the weights in a matrix: all that is known of it before the weights are.

    A pytree, to be an argument of the jitted function that makes the matrix: as a constant of
    its program, millions of indices take seconds to compile.

    Attributes:
      place: (nnz,), for each entry of the pattern its place in the ravelled weights.
      pattern: of the matrix; static.
      shape: of the weights of one map; static.
      rows, cols: (nnz,), row and column of each entry; filled in where they are not given.
    """

    place: Array
    pattern: Pattern = dataclasses.field(metadata={"static": True})
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    rows: Array = None  # type: ignore[assignment]
    cols: Array = None  # type: ignore[assignment]

    def __post_init__(self):
        fill_in_coordinates(self, self.place)

    def sparse(self, weights: Array) -> Sparse:
        """The matrix of these weights, one gather.

        Args:
          weights: (..., *shape).

        Raises:
          ValueError: if they have another shape.
        """
        stack = weights.shape[: max(weights.ndim - len(self.shape), 0)]
        if weights.shape != (*stack, *self.shape):
            raise ValueError(
                f"weights: got shape {tuple(weights.shape)}; (..., "
                f"{', '.join(map(str, self.shape))}) is wanted"
            )
        flat = weights.reshape(*stack, math.prod(self.shape))
        data = flat.at[..., self.place].get(mode="promise_in_bounds")
        return Sparse(data, self.pattern, self.rows, self.cols)


def entries_of(op: Operator, keep: np.ndarray | None = None) -> Entries:
    """Where an operator's weights stand in its matrix, all of them or those that a mask keeps.

    With the mask of pruned weights this is the static pattern of the pruned Jacobian.

    Args:
      op: a `Convolution` or a `Dense`; only shapes are looked at, so that its leaves may be
        `jax.ShapeDtypeStruct`.
      keep: bools in the shape of one map's weights (kernel or matrix), concrete; ``None`` keeps
        all.

    Returns:
      The entries; ``entries_of(op, keep).sparse(weights)`` is the matrix.

    Raises:
      TypeError: if ``op`` has no weights that stand in its matrix, or ``keep`` is traced.
      ValueError: if ``keep`` has another shape.

    Source: BPPSA section 4.3 (Jacobians of pruned weights) and Algorithms 2 to 4, for any geometry.

    Example:
      >>> import jax.numpy as jnp, numpy as np
      >>> from parscan_bp.operators import Convolution, entries_of
      >>> op = Convolution(jnp.array([1.0, 10.0]).reshape(2, 1, 1), spatial=(3,))
      >>> entries_of(op).sparse(op.kernel).as_dense().tolist()
      [[1.0, 10.0, 0.0], [0.0, 1.0, 10.0]]
      >>> pruned = entries_of(op, np.array([False, True]).reshape(2, 1, 1))
      >>> pruned.pattern
      Pattern(2x3, nnz=2)
    """
    if isinstance(op, Convolution):
        shape = tuple(op.kernel.shape[-len(op.spatial) - 2 :])
    elif isinstance(op, Dense):
        shape = op.shape
    else:
        raise TypeError(
            f"op: got {type(op).__name__}; a Convolution or a Dense is wanted, whose weights "
            "stand in its matrix as they are"
        )
    if isinstance(keep, jax.core.Tracer):
        raise TypeError("keep: got a traced array; a pattern is static, build it outside of jit")
    if keep is not None and np.shape(keep) != shape:
        raise ValueError(f"keep: got shape {np.shape(keep)}; that of the weights, {shape}")
    if isinstance(op, Dense):
        place = np.flatnonzero(np.ones(shape, bool) if keep is None else keep)
        return _sorted_entries(*np.divmod(place, shape[1]), place, shape, shape)
    geometry = (op.axes, shape, op.groups, op.transposed)
    return _all_of_convolution(*geometry) if keep is None else _of_convolution(*geometry, keep)


@functools.lru_cache(maxsize=32)
def _all_of_convolution(axes, shape, groups, transposed) -> Entries:
    return _of_convolution(axes, shape, groups, transposed, np.ones(shape, bool))


def _of_convolution(
    axes: tuple[Axis, ...],
    shape: tuple[int, ...],
    groups: int,
    transposed: bool,
    keep: np.ndarray,
) -> Entries:
    positions, window = window_pattern(axes)
    per_group, outputs = shape[-2:]
    inputs = per_group * groups
    channel = np.arange(inputs)
    # (inputs, outputs of a group): what each input channel is connected to.
    channels = np.arange(outputs).reshape(groups, -1)[channel // per_group]
    within = (channel % per_group * outputs)[:, None] + channels
    place = (window[:, None, None] * (per_group * outputs) + within).ravel()
    kept = np.flatnonzero(np.asarray(keep, bool).ravel()[place])
    block, entry = np.divmod(kept, within.size)
    rows = positions.rows[block].astype(np.int64) * inputs + entry // within.shape[1]
    cols = positions.indices[block].astype(np.int64) * outputs + channels.ravel()[entry]
    sizes = (positions.shape[0] * inputs, positions.shape[1] * outputs)
    if not transposed:
        rows, cols, sizes = cols, rows, sizes[::-1]
    return _sorted_entries(rows, cols, place[kept], sizes, shape)


def _sorted_entries(rows, cols, place, sizes, shape) -> Entries:
    order = np.argsort(rows * sizes[1] + cols, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=sizes[0]))])
    pattern = Pattern(sizes, indptr, cols[order])
    return Entries(on_device(place[order].astype(np.int32)), pattern, tuple(shape))
