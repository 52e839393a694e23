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
from parscan_bp.kernels.layouts import fused_layout, spread
from parscan_bp.kernels.rule import Rule
from parscan_bp.kernels.tiles import FusedTile, pitch_of


class Added(NamedTuple):
    """What has been added up, and the pair whose product is added next.

    Attributes:
      products: for every operand and slice of columns, (rows, columns), or (samples, rows, columns)
        of samples that are apart.
      vectors: (samples, rows) for every output that is summed.
      h: (samples, rows).
      operands: (samples, columns) each, by operands and slices.
    """

    products: Any
    vectors: Any
    h: Any
    operands: Any


@dataclasses.dataclass(frozen=True)
class WeightSums:
    """sum_t h_{t-1} u_t^T for every operand u, over the samples of an instance, and sum_t u_t.

    A thread holds those numbers of a product that it holds of the weights. Samples that are apart
    have a sum each, for no warp waits for another one.

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
        """Products (parts, *_products), and vectors (B, starts, H), the sums first."""
        samples, starts = self.tile.samples, self.rule.starts
        box = samples, starts, self.tile.rows
        parts = -(-self.batch // samples) * self.tile.parts
        shapes = (
            (parts, *self._products[1:]),
            compat.room((self.batch, starts, self.size), box),
        )
        return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    @property
    def scratch(self) -> list[Any]:
        return [plgpu.SMEM(self._products, jnp.float32)]

    @property
    def _products(self) -> tuple[int, ...]:
        """Those of an instance: (parts, operands, slices, rows, columns of a slice)."""
        count = len(self.tile.slices(self.size))
        columns = self.size // count if count > 1 else pitch_of(self.size, 4)
        return self.tile.parts, self.rule.operands, count, self.tile.rows, columns

    @property
    def _layout(self) -> Any:
        return fused_layout(self.tile.apart)

    def nothing(self) -> Added:
        """Before the first step."""
        samples, rows, layout = self.tile.samples, self.tile.rows, self._layout
        operands = range(self.rule.operands)
        columns = [width for _, width in self.tile.slices(self.size)]

        def zeros(layout, *shape):
            return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)

        def product(width):
            if self.tile.apart:
                return zeros(layout, samples, rows, width)
            return zeros(layout.reduce(0), rows, width)

        return Added(
            [[product(n) for n in columns] for _ in operands],
            [zeros(layout.reduce(2), samples, rows) for _ in range(self.rule.sums)],
            zeros(layout.reduce(2), samples, rows),
            [[zeros(layout.reduce(1), samples, n) for n in columns] for _ in operands],
        )

    def multiplied(self, added: Added, block: Any) -> Added:
        """With the product of the pair."""
        layout = self._layout

        def plus(total, x):
            shape = (self.tile.samples, self.tile.rows, x.shape[-1])
            y = spread(added.h, shape, (0, 1), layout) * spread(x, shape, (0, 2), layout)
            if self.tile.apart:
                return total + y
            if self.batch % self.tile.samples:
                sample = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
                y = jnp.where(sample + block * self.tile.samples < self.batch, y, 0.0)
            return total + jnp.sum(y, axis=0)

        products = jax.tree.map(plus, added.products, added.operands)
        # Else the compiler moves it to the end of a step, when the others are waited for.
        return added._replace(products=lax.optimization_barrier(products))

    def then(self, added: Added, out: Any, h: Any, operands: Any) -> Added:
        """With what leaves a step, and the pair that it gives."""
        vectors = [a + b for a, b in zip(added.vectors, out[: self.rule.sums], strict=True)]
        return Added(added.products, vectors, h, operands)

    def store(self, added: Added, refs: Any, vectors_s: Any, block: Any) -> None:
        """Starts their copies to memory; ``vectors_s`` is shared memory that nobody reads."""
        products_ref, vectors_ref, products_s = refs
        part = slice(None) if self.tile.apart else 0
        for k, totals in enumerate(added.products):
            for m, total in enumerate(totals):
                products_s[part, k, m, :, pl.ds(0, total.shape[-1])] = total
        for n, total in enumerate(added.vectors):
            vectors_s[:, n] = total
        plgpu.commit_smem()
        parts = pl.ds(block * self.tile.parts, self.tile.parts)
        every = [pl.ds(0, n) for n in self._products[1:]]
        compat.store(products_s, products_ref, parts, *every)
        sample = pl.ds(block * self.tile.samples, self.tile.samples)
        row = compat.from_zero(block, self.tile.rows)
        compat.store(vectors_s, vectors_ref, sample, pl.ds(0, self.rule.starts), row)

    def joined(self, products: Any, vectors: Any) -> tuple[Any, Any]:
        """(operands, H, H) and (sums, H), over all samples."""
        if self.tile.apart:
            products = products[: self.batch]
        vectors = vectors[: self.batch, : self.rule.sums, : self.size]
        operands, _, rows, _ = self._products[1:]
        products = products.sum(0).swapaxes(1, 2).reshape(operands, rows, -1)
        return products[:, : self.size, : self.size], vectors.sum(0)
