"""Dense arithmetic of the operators: products that name their precision and accumulate in float32.

A product of Jacobians carries gradients, so no matrix product here is left to a backend's default:
a GPU's default float32 product may be TF32, and bfloat16 sums in bfloat16 lose the gradient.
Arrays in, arrays out. A result that is called *accumulated* is still in the accumulation dtype:
the caller adds to it and rounds once.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.trees import at_least_single
from parscan_bp.types import Array

PRECISION = lax.Precision.HIGHEST


def accumulation_dtype(dtype: np.dtype) -> np.dtype:
    """Where sums of products of ``dtype`` numbers are accumulated: at least float32.

    Integers accumulate in themselves.
    """
    if jnp.issubdtype(dtype, jnp.inexact):
        return at_least_single(dtype)
    return np.dtype(dtype)


def einsum(spec: str, *operands: Array) -> Array:
    """Einstein summation at the highest precision, rounded once to the operands' dtype."""
    dtype = jnp.result_type(*operands)
    total = jnp.einsum(
        spec, *operands, precision=PRECISION, preferred_element_type=accumulation_dtype(dtype)
    )
    return total.astype(dtype)


def matmul(left: Array, right: Array) -> Array:
    """The product of (..., m, k) and (..., k, n), rounded once to the operands' dtype."""
    dtype = jnp.result_type(left, right)
    total = jnp.matmul(
        left, right, precision=PRECISION, preferred_element_type=accumulation_dtype(dtype)
    )
    return total.astype(dtype)


def apply_matrix(matrix: Array, v: Array) -> Array:
    """The accumulated M v of matrices (..., rows, cols) and vectors (..., cols).

    Leading axes broadcast. A matrix with exactly two axes is shared by all vectors: one plain
    matrix product, nothing broadcast.
    """
    dtype = jnp.result_type(matrix, v)
    total = accumulation_dtype(dtype)
    matrix, v = jnp.asarray(matrix, dtype), jnp.asarray(v, dtype)
    if matrix.ndim == 2:
        contract = (((v.ndim - 1,), (1,)), ((), ()))
        return lax.dot_general(
            v, matrix, contract, precision=PRECISION, preferred_element_type=total
        )
    return jnp.einsum(
        "...ij,...j->...i", matrix, v, precision=PRECISION, preferred_element_type=total
    )


def multiply_sum(left: Array, right: Array, axis: int) -> Array:
    """The accumulated sum over ``axis`` of the broadcast product ``left * right``.

    For contractions of length one to four: XLA fuses the product with the sum, while a batch of
    matrix products that short is what it does worst.
    """
    dtype = accumulation_dtype(jnp.result_type(left, right))
    return jnp.sum(jnp.asarray(left, dtype) * jnp.asarray(right, dtype), axis=axis)
