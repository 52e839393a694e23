"""What a layer states of its derivatives, checked against its sizes: errors name the layer."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.layers.base import Layer
from parscan_bp.operators import Operator
from parscan_bp.system import broadcasts
from parscan_bp.types import Array, PyTree


def stated_operator(name: str, layer: Layer, params: PyTree, x: Array, y: Array) -> Operator:
    """The layer's ``adjoint_operator``.

    Args:
      name: what to call the layer in an error.
      layer, params, x, y: the layer, its parameters, its input and its output.

    Raises:
      TypeError, ValueError: as `checked_operator`.
    """
    return checked_operator(name, layer.adjoint_operator(params, x, y), x, y)


def checked_operator(name: str, a: Any, x: Array, y: Array) -> Operator:
    """What was stated of (d y / d x)^T.

    Args:
      name: of whom, in an error.
      a: what was stated.
      x, y: input and output.

    Raises:
      TypeError: if it is no operator.
      ValueError: if it is of other sizes than the layer.
    """
    if not isinstance(a, Operator):
        raise TypeError(
            f"{name}: adjoint_operator returned {described(a)}; an operator of "
            "parscan_bp.operators is wanted, such as Dense(matrix)"
        )
    size_x, size_y = (math.prod(v.shape[1:]) for v in (x, y))
    if tuple(a.shape) != (size_x, size_y):
        raise ValueError(
            f"{name}: adjoint_operator returned {type(a).__name__} of {a.shape[0]}x{a.shape[1]}; "
            f"{size_x}x{size_y}, features of x {tuple(x.shape)} times those of y "
            f"{tuple(y.shape)}, is wanted: the transposed Jacobian"
        )
    if not broadcasts(a.stack_shape, to=x.shape[:1]):
        raise ValueError(
            f"{name}: adjoint_operator returned a stack {a.stack_shape} of operators; one for "
            f"each of the {x.shape[0]} entries of the batch, or one for all, is wanted"
        )
    return a


def stated_pullback(
    name: str, layer: Layer, params: PyTree, x: Array, y: Array, ct: Array
) -> list[Array]:
    """The leaves of the layer's ``pullback``.

    Args:
      name, layer, params, x, y: as in `stated_operator`.
      ct: cotangent of the output.

    Raises:
      ValueError: if they are not as many and of the same shapes as the parameters.
    """
    cts = layer.pullback(params, x, y, ct)
    got, want = ([tuple(jnp.shape(a)) for a in jax.tree.leaves(t)] for t in (cts, params))
    if got != want:
        raise ValueError(
            f"{name}: pullback returned shapes {got}; those of the parameters, {want}, are wanted"
        )
    return jax.tree.leaves(cts)


def check_has_pullback(what: str, name: str, layer: Layer, params: PyTree) -> None:
    """Raises `ValueError` if there are parameters, and the layer's class has no ``pullback``."""
    if type(layer).pullback is Layer.pullback and jax.tree.leaves(params):
        raise ValueError(
            f"{what}: got {described(params)}; {name} has no pullback, and so has no parameters: "
            "None is wanted; a layer with parameters has to define pullback(params, x, y, ct)"
        )
