"""A feed-forward stack of layers: parameters, activations, operators."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from parscan_bp.layers.base import Layer
from parscan_bp.operators import Operator
from parscan_bp.types import Array, PyTree


def init_stack(
    layers: Sequence[Layer], key: Array, features: tuple[int, ...], dtype=float
) -> list[PyTree]:
    """Parameters of every layer, for inputs (batch, *features)."""
    params = []
    x = jax.ShapeDtypeStruct((1, *features), jnp.result_type(dtype))
    for k, (layer, own) in enumerate(zip(layers, jax.random.split(key, len(layers)), strict=True)):
        params.append(layer.init(own, x.shape[1:], dtype))
        x = jax.eval_shape(functools.partial(apply_at, k, layer), params[-1], x)
    return params


def activations(layers: Sequence[Layer], params: Sequence[PyTree], x: Array) -> list[Array]:
    """[x_0 = x, x_1, ..., x_n] with x_k = layers[k - 1](x_{k-1}).

    Raises:
      ValueError: naming the layer whose parameters and input do not fit.
    """
    xs = [x]
    for k, (layer, p) in enumerate(zip(layers, params, strict=True)):
        xs.append(apply_at(k, layer, p, xs[-1]))
    return xs


def adjoint_operators(
    layers: Sequence[Layer], params: Sequence[PyTree], xs: Sequence[Array]
) -> list[Operator]:
    """The transposed Jacobian of every layer, from the activations."""
    each = zip(layers, params, xs[:-1], xs[1:], strict=True)
    return [layer.adjoint_operator(p, x, y) for layer, p, x, y in each]


def apply_at(k: int, layer: Layer, params: PyTree, x: Array) -> Array:
    """``layer.apply(params, x)``, its errors naming position and input."""
    try:
        y = layer.apply(params, x)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"layers[{k}], {layer}, for an input of shape {tuple(x.shape)}: {error}"
        ) from error
    return y
