"""Cotangents of large weights by few rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.cells.weight_cotangent import product_limits, weight_cotangent

DTYPE = jnp.zeros(()).dtype
FEW = product_limits()["few_outer"]
LARGE = 96
"""Rows and columns of weights above ``product_limits()['small_weights']``."""


def test_outer_products_of_few_rows_are_rounded_once():
    x, ct = (jax.random.normal(jax.random.key(k), (3, LARGE), jnp.bfloat16) for k in (0, 1))
    got = weight_cotangent(x, ct)
    want = np.einsum("ki,kj->ij", np.float64(x), np.float64(ct))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))


@pytest.mark.reads_compiled
@pytest.mark.skipif(jax.device_count() > 1, reason="rows may be sharded: they are one product")
def test_outer_products_of_few_rows_take_no_memory_beside_their_sum():
    def temporary(rows):
        def add(total, x, ct):
            return total + weight_cotangent(x, ct)

        shapes = (LARGE, LARGE), (rows, LARGE), (rows, LARGE)
        args = [jax.ShapeDtypeStruct(shape, DTYPE) for shape in shapes]
        compiled = jax.jit(add, donate_argnums=0).lower(*args).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    weights = LARGE**2 * np.dtype(DTYPE).itemsize
    assert temporary(FEW) < weights / 2 <= temporary(FEW + 1)
