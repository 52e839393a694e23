"""A band of diagonals per map: neighbours on a line."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.sparse import Sparse, from_numbers
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Banded(Operator):
    """(A v)_i = sum_d bands_di v_(i + d - lower): ``lower`` diagonals below the main one.

    Args:
      bands: (..., width, n), the diagonals from the lowest to the highest, each aligned with its
        rows. What lies outside the matrix meets zeros: any finite number may stand there.
      lower: diagonals below the main one; static.

    Raises:
      ValueError: if ``lower`` is not in 0 .. width - 1, or the band is wider than the matrix, when
        the `shape` is first needed.

    Source: the diagonal storage format (DIA); the transposed Jacobian of an explicit step of a
    discretised differential equation in one dimension.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Banded
      >>> op = Banded(jnp.array([[0.0, 1.0, 1.0], [2.0, 2.0, 2.0]]), lower=1)
      >>> op.as_dense().tolist()
      [[2.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 1.0, 2.0]]
    """

    bands: Array
    lower: int = dataclasses.field(metadata={"static": True})

    core_ndims: ClassVar = {"bands": 2}
    patterned: ClassVar = True
    multilinear: ClassVar = True
    held_by: ClassVar = {Sparse: lambda op: op.entries()}

    @property
    def shape(self):
        self.leaves()
        width, n = self.bands.shape[-2:]
        if not 0 <= self.lower < width or max(self.lower, self.upper) >= max(n, 1):
            raise ValueError(
                f"lower: got {self.lower} of {width} diagonals of a matrix of order {n}; the main "
                "diagonal has to be among them, and none lies outside of the matrix"
            )
        return (n, n)

    @property
    def upper(self) -> int:
        """Diagonals above the main one."""
        return self.bands.shape[-2] - 1 - self.lower

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.bands, v)
        wide = accumulation_dtype(dtype)
        n, width = self.bands.shape[-1], self.bands.shape[-2]
        padded = pad_last(jnp.asarray(v, wide), self.lower, self.upper)
        bands = jnp.asarray(self.bands, wide)
        terms = (bands[..., d, :] * padded[..., d : d + n] for d in range(width))
        return sum(terms, start=jnp.zeros((), wide)).astype(dtype)

    def transpose(self):
        # A^T_(i, i + k) = A_(i + k, i): the diagonals in reverse, each moved by its offset.
        n = self.bands.shape[-1]
        padded = pad_last(self.bands, self.upper, self.lower)
        width = self.lower + self.upper
        moved = [padded[..., width - d, d : d + n] for d in range(width + 1)]
        return Banded(jnp.stack(moved, axis=-2), self.upper)

    def as_dense(self):
        n, width = self.bands.shape[-1], self.bands.shape[-2]
        offset = jnp.arange(n) - jnp.arange(n)[:, None] + self.lower
        inside = (offset >= 0) & (offset < width)
        rows = jnp.arange(n)[:, None]
        return jnp.where(inside, self.bands[..., jnp.clip(offset, 0, width - 1), rows], 0)

    def cost(self) -> Cost:
        return self.cost_of(2 * self.bands.shape[-2] * self.bands.shape[-1])

    def entries(self) -> Sparse:
        """Number by number, without those that lie outside the matrix."""
        return from_numbers(self.bands, 2, *_band(self.shape[0], self.lower, self.upper))


def pad_last(x: Array, before: int, after: int) -> Array:
    """Zeros before and after the last axis."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])


@functools.lru_cache(maxsize=32)
def _band(n: int, lower: int, upper: int) -> tuple[Pattern, Array]:
    row, band = (axis.ravel() for axis in np.indices((n, lower + upper + 1)))
    col = row + band - lower
    inside = (col >= 0) & (col < n)
    pattern = Pattern.from_coordinates(row[inside], col[inside], (n, n))
    return pattern, on_device((band * n + row)[inside].astype(np.int32))
