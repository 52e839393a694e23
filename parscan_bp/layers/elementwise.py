"""Elementwise activations: a diagonal each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.layers.base import Layer, flat
from parscan_bp.operators import Diagonal
from parscan_bp.structure import find_structure
from parscan_bp.types import Array


@final
@dataclasses.dataclass(frozen=True)
class Elementwise(Layer):
    """y_i = f(x_i), transposed Jacobian diag(f'(x)).

    Without a derivative, f' is the JVP of f with a vector of ones, which is exact for every
    elementwise function; that ``f`` is one, for arrays of the input's shape, is read off its
    jaxpr.

    Args:
      function: f, of one array (batch, *features).
      derivative: f' as a function of (x, y), elementwise; ``None`` derives it.

    Raises:
      ValueError: by `apply`, if ``function`` returns another shape or dtype; or if there is no
        derivative and it mixes entries of an input of this shape, or is not recognised as
        elementwise. By `adjoint_operator`, if ``derivative`` returns another shape.

    Source: BPPSA appendix D.2, where f is ReLU.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import Elementwise
      >>> x = jnp.array([[0.0, 2.0]])
      >>> Elementwise(jnp.square).adjoint_operator(None, x, x * x).diagonal.tolist()
      [[0.0, 4.0]]
    """

    function: Callable[[Array], Array]
    derivative: Callable[[Array, Array], Array] | None = None

    places_apart: ClassVar = True

    def __post_init__(self):
        if not callable(self.function) or not (
            self.derivative is None or callable(self.derivative)
        ):
            name = "derivative" if callable(self.function) else "function"
            raise TypeError(f"{name}: got {described(getattr(self, name))}; a function is wanted")

    def apply(self, params, x):
        if self.derivative is None:
            _check_elementwise(self.function, x)
        y = self.function(x)
        _check_type("function", self.function, y, x)
        return y

    def adjoint_operator(self, params, x, y):
        if self.derivative is None:
            return Diagonal(flat(jax.jvp(self.function, (x,), (jnp.ones_like(x),))[1]))
        slope = self.derivative(x, y)
        _check_type("derivative", self.derivative, slope, x)
        return Diagonal(flat(slope))


def _check_elementwise(function, x):
    # A function of its own for each trace, which JAX then does not remember: what `function`
    # closes over may have changed.
    closed = jax.make_jaxpr(lambda x: function(x))(x)
    if len(closed.out_avals) != 1:
        raise ValueError(f"function: {_name(function)} returns no array; one is wanted")
    _check_type("function", function, closed.out_avals[0], x)
    found = find_structure(closed, 0, 1)
    if not found.diagonal:
        raise ValueError(
            f"function: {_name(function)} is not elementwise for x of shape {tuple(x.shape)} "
            f"({', '.join(found.mixed_by)} couples its entries); give derivative= if it is, or use "
            "Function(f), which takes any function of one batch entry"
        )


def _check_type(what, function, made, x):
    shape, dtype = getattr(made, "shape", None), getattr(made, "dtype", None)
    if (shape, dtype) != (x.shape, x.dtype):
        got = described(made) if shape is None else f"{dtype}{list(shape)}"
        raise ValueError(
            f"{what}: {_name(function)} makes {got} of {x.dtype}{list(x.shape)}; the same shape "
            "and dtype are wanted"
        )


def _name(function) -> str:
    return getattr(function, "__name__", repr(function))


def _relu_slope(x, y):
    return (x > 0).astype(x.dtype)


def _tanh_slope(x, y):
    return 1 - y * y


def _sigmoid_slope(x, y):
    return y * (1 - y)


def ReLU() -> Elementwise:
    """y = max(x, 0), f' = [x > 0]; 0 at 0, as `jax.nn.relu`."""
    return Elementwise(jax.nn.relu, _relu_slope)


def Tanh() -> Elementwise:
    """y = tanh x, f' = 1 - y^2."""
    return Elementwise(jnp.tanh, _tanh_slope)


def Sigmoid() -> Elementwise:
    """y = 1 / (1 + exp(-x)), f' = y (1 - y)."""
    return Elementwise(jax.nn.sigmoid, _sigmoid_slope)
