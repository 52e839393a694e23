"""A feed-forward stack of layers: parameters, activations, operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_array, as_dtype, check_array, check_key, described
from parscan_bp.layers.base import Layer
from parscan_bp.layers.stated import check_has_pullback, stated_operator
from parscan_bp.operators import Operator
from parscan_bp.types import Array, PyTree


class Sizes(NamedTuple):
    """The types of a layer's parameters, of its input and of its output, for a batch of one."""

    params: PyTree
    x: jax.ShapeDtypeStruct
    y: jax.ShapeDtypeStruct


def init_stack(
    layers: Sequence[Layer], key: Array, features: tuple[int, ...], dtype=float
) -> list[PyTree]:
    """Parameters of every layer, for inputs (batch, *features).

    Raises:
      TypeError: if ``key`` is none, or ``dtype`` no dtype.
      ValueError: as `sizes_of`.
    """
    check_key("key", key)
    dtype = as_dtype("dtype", dtype)
    keys = iter(jax.random.split(key, len(layers)))
    params: list[PyTree] = []

    def init(layer: Layer, features: tuple[int, ...]) -> PyTree:
        params.append(layer.init(next(keys), features, dtype))
        return params[-1]

    _sizes(layers, features, dtype, init)
    return params


def sizes_of(layers: Sequence[Layer], features: tuple[int, ...]) -> list[Sizes]:
    """What layers make of an input of these features, with the parameters of their ``init``.

    Raises:
      ValueError: naming the layer that does not take its input.
    """

    def init(layer: Layer, features: tuple[int, ...]) -> PyTree:
        return jax.eval_shape(functools.partial(layer.init, features=features), jax.random.key(0))

    return _sizes(layers, features, jnp.float32, init)


def _sizes(
    layers: Sequence[Layer], features: tuple[int, ...], dtype: Any, init: Callable[..., PyTree]
) -> list[Sizes]:
    sizes = []
    x = jax.ShapeDtypeStruct((1, *features), jnp.result_type(dtype))
    for k, layer in enumerate(layers):
        try:
            params = init(layer, x.shape[1:])
            y = jax.eval_shape(functools.partial(apply_at, k, layer), params, x)
        except (TypeError, ValueError, KeyError) as error:
            told = str(error) if named(k, layer) in str(error) else f"{named(k, layer)}: {error}"
            raise ValueError(
                f"features: got {tuple(features)}, which is to be the shape of one input, without "
                f"the batch; {told}. Parameters are what each layer's init makes"
            ) from error
        sizes.append(Sizes(params, x, y))
        x = y
    return sizes


def checked_input(x: Any) -> Array:
    """The input of a stack.

    Raises:
      TypeError: if it is none.
    """
    wanted = "real floats (batch, *features) are wanted"
    check_array("x", x, wanted)
    x = as_array("x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.ndim < 2:
        raise TypeError(f"x: got {x.dtype}{list(x.shape)}; {wanted}")
    return x


def activations(layers: Sequence[Layer], params: Sequence[PyTree], x: Array) -> list[Array]:
    """[x_0 = x, x_1, ..., x_n] with x_k = layers[k - 1](x_{k-1}).

    Raises:
      ValueError: naming the layer whose parameters and input do not fit.
    """
    xs = [x]
    for k, (layer, p) in enumerate(zip(layers, params, strict=True)):
        xs.append(apply_at(k, layer, p, xs[-1]))
    return xs


def batched_activations(layers: Sequence[Layer], params: Sequence[PyTree], x: Array) -> list[Array]:
    """`activations` of layers with operators: entries of the batch stay apart.

    Raises:
      ValueError: as `activations`; or naming the layer that changes the batch.
    """
    xs = activations(layers, params, x)
    for k, (layer, x, y) in enumerate(zip(layers, xs[:-1], xs[1:], strict=True)):
        if y.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"{named(k, layer)}: makes shape {tuple(y.shape)} of {tuple(x.shape)}; the "
                f"batch of {x.shape[0]} is wanted as the leading axis, its entries are independent"
            )
    return xs


def adjoint_operators(
    layers: Sequence[Layer], params: Sequence[PyTree], xs: Sequence[Array]
) -> list[Operator]:
    """The transposed Jacobian of every layer, from the activations.

    Raises:
      TypeError, ValueError: naming the layer that states something else.
    """
    each = zip(layers, params, xs[:-1], xs[1:], strict=True)
    return [stated_operator(named(k, own[0]), *own) for k, own in enumerate(each)]


def named(k: int, layer: Layer) -> str:
    """A layer and where it stands, for an error."""
    return f"layers[{k}], {layer}"


def apply_at(k: int, layer: Layer, params: PyTree, x: Array) -> Array:
    """``layer.apply(params, x)``, its errors naming position and input."""
    if not isinstance(layer, Layer):
        raise TypeError(
            f"layers[{k}]: got {described(layer)}; a Layer is wanted, as as_layer makes it"
        )
    try:
        y = layer.apply(params, x)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{named(k, layer)}, for an input of shape {tuple(x.shape)}: {error}"
        ) from error
    if not isinstance(y, jax.Array):
        raise ValueError(f"{named(k, layer)}: makes {described(y)}; one array is wanted")
    return y


def checked_params(stack: Sequence[Layer], params: Any, what: str = "params") -> Sequence[PyTree]:
    """The parameters of a stack: one entry for each layer, ``None`` for a layer without any.

    Raises:
      TypeError: if they are no sequence, such as those of a single layer.
      ValueError: if their number is another, or a layer without parameters is given some.
    """
    if isinstance(params, str | Mapping) or not isinstance(params, Sequence):
        raise TypeError(
            f"{what}: got {described(params)}; a sequence with one entry for each layer is "
            "wanted, None for a layer without parameters"
        )
    if len(params) != len(stack):
        raise ValueError(
            f"{what}: got {len(params)} entries for {len(stack)} layers; one for each is wanted, "
            "None for a layer without parameters"
        )
    for k, (layer, own) in enumerate(zip(stack, params, strict=True)):
        check_has_pullback(f"{what}[{k}]", named(k, layer), layer, own)
    return params
