"""A matrix with a static sparsity pattern per map, entry by entry."""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import as_array, check_kind
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import check_row_offsets
from parscan_bp.sparsity.plan import pick
from parscan_bp.types import Array

if TYPE_CHECKING:
    from jax.experimental import sparse as jax_sparse


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Sparse(Operator):
    """(A v)_i = sum_k data_k v_(cols_k) over the entries k of row i.

    All maps of a stack share one pattern. Its row and column numbers are leaves, so that they are
    arguments of a jitted function and not constants of its program; they are filled in where they
    are not given.

    Args:
      data: (..., nnz), in the order of the pattern's rows.
      pattern: where the entries are; static.
      rows: (nnz,), the row of each entry.
      cols: (nnz,), its column.

    Raises:
      ValueError: if ``data`` does not have one number per entry, when the `shape` is first needed.

    Source: BPPSA section 3.3 (transposed Jacobians as CSR matrices of a guaranteed pattern).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Sparse
      >>> from parscan_bp.sparsity import Pattern
      >>> pattern = Pattern.from_coordinates([0, 1], [2, 0], (2, 3))
      >>> Sparse(jnp.array([2.0, 3.0]), pattern).matvec(jnp.array([1.0, 10.0, 100.0])).tolist()
      [200.0, 3.0]
    """

    data: Array
    pattern: Pattern = dataclasses.field(metadata={"static": True})
    # `__post_init__` fills them in.
    rows: Array = None  # type: ignore[assignment]
    cols: Array = None  # type: ignore[assignment]

    core_ndims: ClassVar = {"data": 1, "rows": 1, "cols": 1}
    patterned: ClassVar = True
    multilinear: ClassVar = True

    def __post_init__(self):
        fill_in_coordinates(self, self.data)
        super().__post_init__()

    @classmethod
    def from_csr(cls, data: Array, indices: Any, indptr: Any, shape: tuple[int, int]) -> Sparse:
        """From the arrays of a compressed-row matrix: scipy's ``csr_matrix``, JAX's ``BCSR``.

        Args:
          data: (..., nnz).
          indices: (nnz,), columns; in any order within a row, none twice.
          indptr: (rows + 1,). What ``data`` and ``indices`` have beyond its last entry is padding
            (``nse`` of JAX's), and left out.
          shape: (rows, cols).

        Raises:
          TypeError: if the indices are traced: a pattern is static.
          ValueError: if they do not describe a matrix.

        Example:
          >>> import jax.numpy as jnp
          >>> from parscan_bp.operators import Sparse
          >>> Sparse.from_csr(jnp.ones(2), [1, 0], [0, 2, 2], (2, 2)).as_dense().tolist()
          [[1.0, 1.0], [0.0, 0.0]]
        """
        indices, indptr = _concrete("indices", indices), _concrete("indptr", indptr)
        data = as_array("data", data)
        check_row_offsets(indptr, shape[0])
        if indices.ndim != 1 or len(indices) < indptr[-1] or data.shape[-1:] != indices.shape:
            raise ValueError(
                f"indices: got shape {indices.shape} for data of shape {data.shape}; as many of "
                f"both are wanted, and at least the {indptr[-1]} entries in which indptr ends"
            )
        rows, cols = np.repeat(np.arange(shape[0]), np.diff(indptr)), indices[: indptr[-1]]
        pattern = Pattern.from_coordinates(rows, cols, shape)
        return cls(pick(data, np.lexsort((cols, rows))), pattern)

    @classmethod
    def from_bcoo(cls, matrix: jax_sparse.BCOO) -> Sparse:
        """From a `jax.experimental.sparse.BCOO` matrix; see `to_bcoo`.

        Args:
          matrix: two sparse axes, batch axes in front whose patterns are shared (size 1), none
            dense; no position twice. Entries at positions outside of it are padding (``nse`` of
            JAX's), and left out.

        Raises:
          TypeError: if it is no such matrix, or its indices are traced: a pattern is static.
          ValueError: if its axes are others, or a position is given twice.
        """
        check_kind("matrix", matrix, _jax_sparse().BCOO, "a jax.experimental.sparse.BCOO")
        indices = _concrete("matrix.indices", matrix.indices)
        shared = matrix.n_sparse == 2 and matrix.n_dense == 0
        if not shared or any(n != 1 for n in indices.shape[: matrix.n_batch]):
            raise ValueError(
                f"matrix: got n_batch={matrix.n_batch}, n_sparse={matrix.n_sparse}, "
                f"n_dense={matrix.n_dense}, indices of shape {indices.shape}; two sparse axes and "
                "one pattern for all batch entries are wanted"
            )
        rows, cols = indices.reshape(-1, 2).T
        inside = np.flatnonzero((rows < matrix.shape[-2]) & (cols < matrix.shape[-1]))
        rows, cols = rows[inside], cols[inside]
        pattern = Pattern.from_coordinates(rows, cols, (matrix.shape[-2], matrix.shape[-1]))
        return cls(pick(matrix.data, inside[np.lexsort((cols, rows))]), pattern)

    def to_bcoo(self) -> jax_sparse.BCOO:
        """The same matrices as BCOO: stack axes become batch axes that share one pattern."""
        ndim = len(self.stack_shape)
        indices = jnp.stack([first(self.rows), first(self.cols)], axis=-1)
        indices = indices.reshape((1,) * ndim + indices.shape)
        return _jax_sparse().BCOO(
            (jnp.broadcast_to(self.data, (*self.stack_shape, self.pattern.nnz)), indices),
            shape=(*self.stack_shape, *self.shape),
            indices_sorted=True,
            unique_indices=True,
        )

    @property
    def shape(self):
        self.leaves()
        if self.data.shape[-1] != self.pattern.nnz:
            raise ValueError(
                f"data: got shape {tuple(self.data.shape)}; the pattern has {self.pattern.nnz} "
                "entries"
            )
        return self.pattern.shape

    @property
    def dtype(self):
        return jnp.result_type(self.data)

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.data, v)
        wide = accumulation_dtype(dtype)
        if self.data.ndim > 1 or v.ndim == 1:
            terms = jnp.asarray(self.data, wide) * jnp.asarray(pick(v, first(self.cols)), wide)
            return add_at(first(self.rows), terms, self.shape[0]).astype(dtype)
        # A matrix that all vectors share moves them together: stretches of memory, not numbers.
        together = jnp.asarray(v, wide).reshape(math.prod(v.shape[:-1]), v.shape[-1]).T
        terms = jnp.asarray(self.data, wide)[:, None] * pick(together, first(self.cols), axis=-2)
        total = jnp.zeros((self.shape[0], terms.shape[1]), terms.dtype)
        total = total.at[first(self.rows)].add(
            terms, indices_are_sorted=True, mode="promise_in_bounds"
        )
        return total.T.reshape(*v.shape[:-1], self.shape[0]).astype(dtype)

    def transpose(self):
        pattern, order = self.pattern.transposed
        return Sparse(pick(self.data, order), pattern)

    def as_dense(self):
        dense = jnp.zeros((*self.data.shape[:-1], *self.shape), self.dtype)
        dense = dense.at[..., first(self.rows), first(self.cols)].set(self.data)
        return jnp.broadcast_to(dense, (*self.stack_shape, *self.shape))

    def cost(self) -> Cost:
        return self.cost_of(2 * self.pattern.nnz)

    def rate(self, vectors):
        return "shared" if vectors > 1 and not self.stack_shape else "entries"

    @property
    def entry_pattern(self):
        return self.pattern


def from_numbers(numbers: Array, ndim: int, pattern: Pattern, order: Array | None) -> Sparse:
    """Of the numbers in the last ``ndim`` axes those of this order; all of them without one."""
    kept = numbers.ndim - ndim
    data = numbers.reshape(*numbers.shape[:kept], math.prod(numbers.shape[kept:]))
    return Sparse(data if order is None else pick(data, order), pattern)


def fill_in_coordinates(op: Any, numbers: Any) -> None:
    """The pattern's own row and column numbers, where an operator was made without."""
    # Pytree tools rebuild operators with other things than arrays: those stay as they are.
    if op.rows is None and op.cols is None and hasattr(numbers, "shape"):
        rows, cols = op.pattern.coordinates
        object.__setattr__(op, "rows", rows)
        object.__setattr__(op, "cols", cols)


def first(index: Array) -> Array:
    """The index array of one map: where it has stack axes, all of its copies are equal."""
    return index if index.ndim == 1 else index.reshape(-1, index.shape[-1])[0]


def add_at(rows: Array, terms: Array, size: int) -> Array:
    """(..., size) sums of terms (..., nnz), each added at its row; rows ascend."""
    total = jnp.zeros((*terms.shape[:-1], size), terms.dtype)
    return total.at[..., rows].add(terms, indices_are_sorted=True, mode="promise_in_bounds")


def _concrete(name: str, index: Any) -> np.ndarray:
    if isinstance(index, jax.core.Tracer):
        raise TypeError(f"{name}: got a traced array; a pattern is static, build it outside of jit")
    return np.asarray(index)


def _jax_sparse() -> Any:
    """Imported where it is used: it takes as long to import as all of this package."""
    return importlib.import_module("jax.experimental.sparse")
