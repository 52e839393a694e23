"""What a backward recurrence adds up over its steps, in registers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat
from parscan_bp.kernels.compat import plgpu
from parscan_bp.kernels.layouts import spread, vector_layout
from parscan_bp.kernels.rule import Rule
from parscan_bp.kernels.tiles import FusedTile, pitch_of


class Added(NamedTuple):
    """What has been added up, and the pair whose product is added next.

    Attributes:
      products: (rows, H) for every operand.
      vectors: (samples, rows) for every output that is summed.
      h: (samples, rows).
      operands: (samples, H) each.
    """

    products: Any
    vectors: Any
    h: Any
    operands: Any


@dataclasses.dataclass(frozen=True)
class WeightSums:
    """sum_t h_{t-1} u_t^T for every operand u, over the samples of an instance, and sum_t u_t.

    A thread holds those numbers of a product that it holds of the weights.

    Attributes:
      rule: with sums.
      tile: of the recurrence.
      size: H.
      batch: B.
    """

    rule: Rule
    tile: FusedTile
    size: int
    batch: int

    @property
    def outputs(self) -> list[Any]:
        """Products (instances, operands, H, H), and vectors (B, starts, H), the sums first."""
        samples, starts = self.tile.samples, self.rule.starts
        box = samples, starts, self.tile.rows
        shapes = (
            (-(-self.batch // samples), *self._products),
            compat.room((self.batch, starts, self.size), box),
        )
        return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    @property
    def scratch(self) -> list[Any]:
        return [plgpu.SMEM(self._products, jnp.float32)]

    @property
    def _products(self) -> tuple[int, int, int]:
        return self.rule.operands, self.tile.rows, pitch_of(self.size, 4)

    def nothing(self) -> Added:
        """Before the first step."""
        samples, rows, layout = self.tile.samples, self.tile.rows, vector_layout(1)

        def zeros(count, axis, *shape):
            zero = jnp.zeros(shape, jnp.float32)
            return [plgpu.layout_cast(zero, layout.reduce(axis)) for _ in range(count)]

        (h,) = zeros(1, 2, samples, rows)
        return Added(
            zeros(self.rule.operands, 0, rows, self.size),
            zeros(self.rule.sums, 2, samples, rows),
            h,
            zeros(self.rule.operands, 1, samples, self.size),
        )

    def multiplied(self, added: Added, block: Any) -> Added:
        """With the product of the pair."""
        layout = vector_layout(1)
        shape = (self.tile.samples, self.tile.rows, self.size)
        h = spread(added.h, shape, (0, 1), layout)

        def plus(total, x):
            y = h * spread(x, shape, (0, 2), layout)
            if self.batch % self.tile.samples:
                sample = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
                y = jnp.where(sample + block * self.tile.samples < self.batch, y, 0.0)
            return total + jnp.sum(y, axis=0)

        products = [plus(*pair) for pair in zip(added.products, added.operands, strict=True)]
        # Else the compiler moves it to the end of a step, when the others are waited for.
        return added._replace(products=lax.optimization_barrier(products))

    def then(self, added: Added, out: Any, h: Any, operands: Any) -> Added:
        """With what leaves a step, and the pair that it gives."""
        vectors = [a + b for a, b in zip(added.vectors, out[: self.rule.sums], strict=True)]
        return Added(added.products, vectors, h, operands)

    def store(self, added: Added, refs: Any, vectors_s: Any, block: Any) -> None:
        """Starts their copies to memory; ``vectors_s`` is shared memory that nobody reads."""
        products_ref, vectors_ref, products_s = refs
        for k, total in enumerate(added.products):
            products_s[k, :, pl.ds(0, self.size)] = total
        for n, total in enumerate(added.vectors):
            vectors_s[:, n] = total
        plgpu.commit_smem()
        every = [pl.ds(0, n) for n in self._products]
        compat.store(products_s, products_ref, block, *every)
        sample = pl.ds(block * self.tile.samples, self.tile.samples)
        row = compat.from_zero(block, self.tile.rows)
        compat.store(vectors_s, vectors_ref, sample, pl.ds(0, self.rule.starts), row)

    def joined(self, products: Any, vectors: Any) -> tuple[Any, Any]:
        """(operands, H, H) and (sums, H), over all samples."""
        vectors = vectors[: self.batch, : self.rule.sums, : self.size]
        return products[..., : self.size, : self.size].sum(0), vectors.sum(0)
