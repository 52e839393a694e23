"""The cotangent of a weight matrix, in the way in which XLA on CPU makes that fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.measured import measured
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.types import Array


def product_limits() -> Mapping[str, int]:
    """Where one product begins to be faster than another, on a CPU.

    ``few_outer``: most outer products that are summed one by one. ``small_weights``: number of
    weights up to which they are not, and steps and rows are contracted as one axis: of all but the
    square ones. ``square``: weights with as many rows as columns, and a multiple of this, are
    multiplied faster by more than a transposed copy of an operand takes.
    """
    return measured("cpu")["weight_cotangent"]


def weight_cotangent(x: Array, ct: Array) -> Array:
    """The cotangent of w in ``x @ w``, whose own is ``ct``: one product over all leading axes.

    XLA transposes a whole operand of a product that contracts several axes, which for small
    weights takes as long as the product. So steps and rows become one axis, but for square weights
    of some sizes, whose product gains more than the copy takes. Of large weights, few rows are a
    sum of outer products. Neither where there are several devices: rows that are sharded over them
    would be gathered for it.
    """
    *lead, inputs = x.shape
    outputs = ct.shape[-1]
    rows, alone, limit = math.prod(lead), jax.device_count() == 1, product_limits()
    small = inputs * outputs <= limit["small_weights"]
    square = inputs == outputs and inputs % limit["square"] == 0
    if alone and not small and 1 < rows <= limit["few_outer"]:
        total = _outer_sum(*as_rows(x, ct))
        return total.astype(jnp.result_type(x, ct))
    if small and not square and sum(n != 1 for n in lead) > 1:
        x, ct = as_rows(x, ct)
    axes = tuple(range(x.ndim - 1))
    return lax.dot_general(x, ct, ((axes, axes), ((), ())))


def as_rows(*arrays: Array) -> list[Array]:
    """The same arrays (*lead, features) as (rows, features).

    Products for which XLA reshapes them differently would be evaluated once for each. Not where
    there are several devices; see `weight_cotangent`.
    """
    if jax.device_count() > 1:
        return list(arrays)
    return [a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) for a in arrays]


def _outer_sum(left: Array, right: Array) -> Array:
    """The accumulated sum of ``outer(left[k], right[k])``, of a few of them.

    XLA fuses it with what it is added to, while a matrix product takes the memory of its result
    once more.
    """
    dtype = accumulation_dtype(jnp.result_type(left, right))
    left, right = jnp.asarray(left, dtype), jnp.asarray(right, dtype)
    return sum(a[:, None] * b for a, b in zip(left, right, strict=True))
