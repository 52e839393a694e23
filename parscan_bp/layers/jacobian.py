"""Jacobians of layers as matrices of `jax.experimental.sparse`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parscan_bp.arguments import check_bool
from parscan_bp.layers.registry import as_layer
from parscan_bp.layers.stack import checked_input, checked_params
from parscan_bp.layers.stated import stated_operator
from parscan_bp.operators import Operator, Sparse
from parscan_bp.operators.lattice import brought
from parscan_bp.sparsity import Pattern
from parscan_bp.types import Array, PyTree

if TYPE_CHECKING:
    from jax.experimental import sparse as jax_sparse


def jacobian_bcoo(
    layer: Any, params: PyTree, x: Array, *, transposed: bool = False
) -> jax_sparse.BCOO:
    """The Jacobian J = d y / d x of a layer as a `jax.experimental.sparse.BCOO`.

    It is made analytically, entry by entry, and not by differentiation. Its pattern is that of the
    layer, whatever the numbers are: an entry may be zero, as of a ReLU.

    Args:
      layer: whatever stands in a list of layers: a `Layer`, `jax.nn.relu`, an object of a
        registered class.
      params: its parameters, as `init` makes them; ``None`` for a layer without any.
      x: the input, (batch, *features).
      transposed: whether J^T is returned, the map of back-propagation.

    Returns:
      The matrices, (batch, size of y, size of x) with ``n_batch=1`` and one pattern for all;
      features are flattened, the last axis fastest. Where they do not depend on the input, as of a
      convolution, one matrix (size of y, size of x) for the whole batch. Under `jax.jit` and
      `jax.vmap`, too.

    Raises:
      TypeError: if the layer is not known, or x is not of real floats.
      ValueError: if params and x do not fit, or the layer states an operator of other sizes.

    Source: BPPSA section 3.3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import jacobian_bcoo
      >>> jacobian_bcoo(jax.nn.relu, None, jnp.array([[-1.0, 2.0]])).todense().tolist()
      [[[0.0, 0.0], [0.0, 1.0]]]
    """
    check_bool("transposed", transposed)
    known, x = as_layer(layer), checked_input(x)
    (params,) = checked_params([known], [params])
    name = type(known).__name__
    adjoint = stated_operator(name, known, params, x, known.apply(params, x))
    return _sparse(adjoint if transposed else adjoint.transpose()).to_bcoo()


def _sparse(op: Operator) -> Sparse:
    """The same maps entry by entry; every entry of those that have no pattern."""
    found = brought(op, Sparse)
    if isinstance(found, Sparse):
        return found
    dense = op.as_dense()
    pattern = Pattern.from_mask(np.ones(dense.shape[-2:], bool))
    return Sparse(dense.reshape(*dense.shape[:-2], pattern.nnz), pattern)
