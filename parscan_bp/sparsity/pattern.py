"""Where a matrix may be non-zero: static, hashable, computed once by NumPy."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.types import Array


def on_device(array: np.ndarray) -> Array:
    """A concrete array, also while a function is traced: fit to be kept and used again."""
    with jax.ensure_compile_time_eval():
        return jnp.asarray(array)


def check_row_offsets(indptr: np.ndarray, rows: int) -> None:
    """Raises `ValueError` unless they are the offsets of so many compressed rows."""
    if indptr.shape != (rows + 1,) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise ValueError(
            f"indptr: got shape {indptr.shape}; {rows + 1} ascending offsets from 0 are wanted"
        )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Pattern:
    """The positions of a sparse matrix in compressed rows, columns ascending, none twice.

    A pattern is known before training (BPPSA section 3.3), so it is static: two equal patterns
    hash alike and let a jitted function be used again.

    Args:
      shape: (rows, cols).
      indptr: (rows + 1,); row i has the entries ``indptr[i] .. indptr[i + 1]``.
      indices: (nnz,), the column of each entry.

    Raises:
      ValueError: if these do not describe a matrix, or the columns of a row do not ascend.

    Source: the compressed sparse row format; BPPSA section 3.3, Algorithms 2 to 10.

    Example:
      >>> import numpy as np
      >>> pattern = Pattern.from_coordinates([0, 1, 1], [1, 0, 2], (2, 3))
      >>> pattern.nnz, pattern.indptr.tolist(), pattern.indices.tolist()
      (3, [0, 1, 3], [1, 0, 2])
      >>> pattern == Pattern.from_mask(np.array([[0, 1, 0], [1, 0, 1]]))
      True
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray

    def __post_init__(self):
        rows, cols = self.shape
        indptr = np.array(self.indptr, np.int64)
        indices = np.array(self.indices, np.int32)
        check_row_offsets(indptr, rows)
        if indices.shape != (indptr[-1],):
            raise ValueError(
                f"indices: got shape {indices.shape}; indptr ends in {indptr[-1]} entries"
            )
        if indices.size and not 0 <= indices.min() <= indices.max() < cols:
            raise ValueError(f"indices: a column lies outside the matrix of {rows}x{cols}")
        inside = np.ones(indices.size, bool)
        inside[indptr[:-1][np.diff(indptr) > 0]] = False  # the first entry of each row
        if (np.diff(indices, prepend=-1)[inside] <= 0).any():
            raise ValueError("indices: the columns of a row do not ascend")
        for name, array in (("indptr", indptr), ("indices", indices)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "shape", (int(rows), int(cols)))

    @classmethod
    def from_coordinates(cls, rows, cols, shape: tuple[int, int]) -> Pattern:
        """The pattern of the positions (rows[k], cols[k]), in any order.

        Raises:
          ValueError: if a position lies outside ``shape`` or is given twice.
        """
        rows, cols = np.asarray(rows, np.int64), np.asarray(cols, np.int64)
        outside = (rows < 0) | (rows >= shape[0]) | (cols < 0) | (cols >= shape[1])
        if rows.shape != cols.shape or rows.ndim != 1 or outside.any():
            raise ValueError(
                f"rows, cols: got shapes {rows.shape} and {cols.shape}; one position inside "
                f"{shape[0]}x{shape[1]} per entry is wanted"
            )
        keys = np.sort(rows * shape[1] + cols)
        twice = keys[1:][keys[1:] == keys[:-1]]
        if twice.size:
            at = tuple(map(int, divmod(twice[0], shape[1])))
            raise ValueError(
                f"rows, cols: the position {at} is given twice; each of them once, entries there "
                "added up, is wanted"
            )
        return _from_keys(keys, shape)

    @classmethod
    def from_mask(cls, mask) -> Pattern:
        """The pattern of the entries of a matrix that are not zero.

        Raises:
          ValueError: if it has not two axes.
        """
        if np.ndim(mask) != 2:
            raise ValueError(f"mask: got shape {np.shape(mask)}; a matrix is wanted")
        rows, cols = np.nonzero(mask)
        return cls.from_coordinates(rows, cols, np.shape(mask))

    @classmethod
    def diagonal(cls, n: int) -> Pattern:
        """The pattern of the unit matrix of order n."""
        return cls((n, n), np.arange(n + 1), np.arange(n))

    def __hash__(self):
        return hash((self.shape, self._digest))

    def __eq__(self, other):
        if not isinstance(other, Pattern):
            return NotImplemented
        return self is other or (self.shape == other.shape and self._digest == other._digest)

    def __repr__(self):
        return f"Pattern({self.shape[0]}x{self.shape[1]}, nnz={self.nnz})"

    @functools.cached_property
    def _digest(self) -> bytes:
        digest = hashlib.blake2b(self.indptr.tobytes(), digest_size=16)
        digest.update(self.indices.tobytes())
        return digest.digest()

    @property
    def nnz(self) -> int:
        """Number of positions."""
        return self.indices.size

    @property
    def fill(self) -> float:
        """nnz as a part of all entries; 0 for a matrix without entries."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """(nnz,), the row of each entry."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int32), self.row_counts)

    @property
    def row_counts(self) -> np.ndarray:
        """(rows,), the entries of each row."""
        return np.diff(self.indptr)

    @property
    def column_counts(self) -> np.ndarray:
        """(cols,), the entries of each column."""
        return np.bincount(self.indices, minlength=self.shape[1])

    @functools.cached_property
    def coordinates(self) -> tuple[Array, Array]:
        """Rows and columns of the entries, int32 arrays on the device."""
        return on_device(self.rows), on_device(self.indices)

    @functools.cached_property
    def transposed(self) -> tuple[Pattern, Array]:
        """The pattern of the transpose, and which entry of this one each of its entries is."""
        order = np.lexsort((self.rows, self.indices)).astype(np.int32)
        indptr = np.concatenate([[0], np.cumsum(self.column_counts)])
        return Pattern(self.shape[::-1], indptr, self.rows[order]), on_device(order)

    def as_mask(self) -> np.ndarray:
        """The pattern as a matrix of booleans."""
        mask = np.zeros(self.shape, bool)
        mask[self.rows, self.indices] = True
        return mask

    @functools.lru_cache(maxsize=128)  # noqa: B019  (patterns are few and small)
    def expand(
        self, rows: int, cols: int, *, diagonal: bool = False
    ) -> tuple[Pattern, Array | None]:
        """Every position as a block of rows x cols positions, all of it or its diagonal.

        Returns:
          The larger pattern, and for each of its entries the index into the numbers of all
          blocks: of shape (nnz, rows, cols), or (nnz, rows) for diagonals, ravelled; ``None``
          where each entry has the index of its own place.
        """
        if diagonal:
            row, col = np.arange(rows), np.arange(rows)
        else:
            row, col = (axis.ravel() for axis in np.indices((rows, cols)))
        shape = (self.shape[0] * rows, self.shape[1] * cols)
        all_rows = (self.rows.astype(np.int64)[:, None] * rows + row).ravel()
        all_cols = (self.indices.astype(np.int64)[:, None] * cols + col).ravel()
        order = np.argsort(all_rows * shape[1] + all_cols)
        keys = (all_rows * shape[1] + all_cols)[order]
        in_place = (order == np.arange(order.size)).all()
        return _from_keys(keys, shape), None if in_place else on_device(order.astype(np.int32))


def _from_keys(keys: np.ndarray, shape: tuple[int, int]) -> Pattern:
    """The pattern of sorted ``row * cols + col``, as int64: their product exceeds 2**31."""
    rows, cols = np.divmod(keys, max(shape[1], 1))
    counts = np.bincount(rows, minlength=shape[0])
    return Pattern(shape, np.concatenate([[0], np.cumsum(counts)]), cols)
