"""The debug check of a layer: what it states against automatic differentiation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import as_array, as_int, check_key, check_kind
from parscan_bp.layers.base import Layer, flat
from parscan_bp.layers.stated import check_has_pullback, stated_operator, stated_pullback
from parscan_bp.types import Array, PyTree


def check_layer(layer: Layer, params: PyTree, x: Array, key: Array, probes: int = 3) -> None:
    """Compares a layer's operator and pullback with the VJP of its values, for random cotangents.

    Args:
      layer: the layer.
      params: its parameters.
      x: an input (batch, *features).
      key: random key.
      probes: number of cotangents.

    Raises:
      ValueError: naming what differs, the entry, and both numbers; if the layer has parameters and
        no pullback, or its operator or pullback is of other sizes.
      TypeError: if its operator is none, or an argument none such.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import Elementwise, check_layer
      >>> wrong = Elementwise(jnp.sin, derivative=lambda x, y: jnp.sin(x))
      >>> check_layer(wrong, None, jnp.zeros((1, 1)), jax.random.key(0))  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ValueError: adjoint_operator of Elementwise: entry (0, 0) of a product is 0.0, \
but automatic differentiation gives ...
    """
    check_kind("layer", layer, Layer, "a Layer (as_layer makes one of a function)")
    check_key("key", key)
    probes = as_int("probes", probes)
    x = as_array("x", x)
    params = jax.tree.map(jnp.asarray, params)
    y, vjp = jax.vjp(layer.apply, params, x)
    name = type(layer).__name__
    check_has_pullback("params", name, layer, params)
    operator = stated_operator(name, layer, params, x, y)
    for k in jax.random.split(key, probes):
        ct = jax.random.normal(k, y.shape, y.dtype)
        for_params, for_x = vjp(ct)
        got = operator.matvec(flat(ct))
        _compare(f"adjoint_operator of {name}", np.asarray(got), np.asarray(flat(for_x)))
        cts = stated_pullback(name, layer, params, x, y, ct)
        for leaf, (a, b) in enumerate(zip(cts, jax.tree.leaves(for_params), strict=True)):
            if b.dtype != jax.dtypes.float0:
                _compare(f"pullback of {name}, parameter leaf {leaf}", np.asarray(a), np.asarray(b))


def _compare(what: str, got: np.ndarray, want: np.ndarray) -> None:
    if got.shape != want.shape:
        raise ValueError(f"{what}: got shape {got.shape}; {want.shape} is wanted")
    error = np.abs(got - want)
    bound = 1000 * float(jnp.finfo(want.dtype).eps) * max(1.0, float(np.abs(want).max(initial=0)))
    if not (error <= bound).all():
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        at = tuple(int(i) for i in np.unravel_index(worst, error.shape))
        raise ValueError(
            f"{what}: entry {at} of a product is {got[at]}, but automatic differentiation gives "
            f"{want[at]}"
        )
