"""Elementwise activations: a diagonal each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import final

import jax
import jax.numpy as jnp

from parscan_bp.layers.base import Layer, flat
from parscan_bp.operators import Diagonal
from parscan_bp.structure import find_structure
from parscan_bp.types import Array


@final
@dataclasses.dataclass(frozen=True)
class Elementwise(Layer):
    """y_i = f(x_i), transposed Jacobian diag(f'(x)).

    Without a derivative, f' is the JVP of f with a vector of ones, which is exact for every
    elementwise function; that ``f`` is one is read off its jaxpr.

    Args:
      function: f, of one array.
      derivative: f' as a function of (x, y), elementwise; ``None`` derives it.

    Raises:
      ValueError: by `apply`, if there is no derivative and ``function`` mixes entries, or is not
        recognised as elementwise.

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

    def apply(self, params, x):
        if self.derivative is None:
            _check_elementwise(self.function, x.dtype)
        return self.function(x)

    def adjoint_operator(self, params, x, y):
        if self.derivative is not None:
            return Diagonal(flat(self.derivative(x, y)))
        return Diagonal(flat(jax.jvp(self.function, (x,), (jnp.ones_like(x),))[1]))


@functools.lru_cache(maxsize=256)
def _check_elementwise(function, dtype):
    probe = jax.ShapeDtypeStruct((2, 3), dtype)
    closed = jax.make_jaxpr(function)(probe)
    (out,) = closed.out_avals
    if out.shape != probe.shape or out.dtype != probe.dtype:
        raise ValueError(
            f"function: {_name(function)} makes {out.dtype}{list(out.shape)} of "
            f"{probe.dtype}{list(probe.shape)}; an elementwise function is wanted"
        )
    found = find_structure(closed, 0, 1)
    if not found.diagonal:
        raise ValueError(
            f"function: {_name(function)} is not elementwise ({', '.join(found.mixed_by)}); give "
            "derivative= if it is, or use Function(f)"
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
