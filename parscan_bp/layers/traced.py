"""The layer that a function of one array is, read off its trace."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from parscan_bp.layers.base import Layer
from parscan_bp.layers.convolution import Conv
from parscan_bp.layers.elementwise import Elementwise
from parscan_bp.layers.keys import key_of
from parscan_bp.layers.linear import Flatten, Linear
from parscan_bp.layers.pooling import AveragePool, MaxPool
from parscan_bp.structure import find_structure
from parscan_bp.types import Array, PyTree

FoundLayer = tuple[Layer, PyTree]
"""A layer and its parameters."""


def traced_layer(
    function: Callable[[Any], Any], x: jax.ShapeDtypeStruct
) -> list[FoundLayer] | None:
    """The layers that a function is, with the arrays it closes over as their parameters.

    Known are ``x @ K + b``, convolutions with channels last, max- and average-pooling, flattening
    to (batch, size), elementwise functions that depend on nothing that may change (`key_of`), and
    the identity, which is no layer at all. What the function is called does not matter.

    Args:
      function: function of one array (batch, *features).
      x: its shape and dtype.

    Returns:
      At most one layer with its parameters; ``None`` for a function that is none of the above.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers.traced import traced_layer
      >>> kernel, x = jnp.ones((3, 2)), jax.ShapeDtypeStruct((4, 3), "float32")
      >>> [(layer, params)] = traced_layer(lambda x: x @ kernel, x)
      >>> layer
      Linear(channels=2, bias=False)
    """
    # A function of its own for each trace: JAX would remember the trace of this one, with arrays
    # that a module's parameters have been replaced in since.
    closed, result = jax.make_jaxpr(lambda x: function(x), return_shape=True)(x)
    jaxpr = closed.jaxpr
    if not isinstance(result, jax.ShapeDtypeStruct) or x.ndim < 2:
        return None
    if not jaxpr.eqns:
        return [] if jaxpr.outvars[0] is jaxpr.invars[0] else None
    first = jaxpr.eqns[0]
    pattern = _PATTERNS.get(first.primitive.name)
    takes_x = bool(first.invars) and first.invars[0] is jaxpr.invars[0]
    found = pattern(_Trace(closed, x)) if pattern is not None and takes_x else None
    if found is None and _is_elementwise(closed) and key_of(function) is not None:
        found = Elementwise(function, functools.partial(_slope, function)), None
    return None if found is None else [found]


def _slope(function, x, y):
    """f' of a function that is elementwise for arrays of the shape it was traced with."""
    return jax.jvp(function, (x,), (jnp.ones_like(x),))[1]


class _Trace:
    """A jaxpr of one array, its constants by variable."""

    def __init__(self, closed: ClosedJaxpr, x: jax.ShapeDtypeStruct):
        self.x, self.y = x, closed.out_avals[0]
        self.first, *self.rest = closed.jaxpr.eqns
        self._consts = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def const(self, variable: Any) -> Array | None:
        """The value of a constant that is an array."""
        return None if isinstance(variable, Literal) else self._consts.get(variable)

    def bias(self) -> Mapping[str, Array] | None:
        """What follows the first equation: nothing, or the sum with a vector by channel."""
        if not self.rest:
            return {}
        if [e.primitive.name for e in self.rest] != ["reshape", "add"]:
            return None
        shaped, added = self.rest
        vector, wanted = self.const(shaped.invars[0]), (self.first.outvars[0], shaped.outvars[0])
        if vector is None or vector.ndim != 1 or tuple(added.invars) != wanted:
            return None
        return {"bias": vector} if shaped.outvars[0].aval.shape[-1] == vector.size else None


def _linear(trace: _Trace) -> FoundLayer | None:
    kernel, bias = trace.const(trace.first.invars[1]), trace.bias()
    contracted = (((trace.x.ndim - 1,), (0,)), ((), ()))
    dimensions = jax.tree.map(int, trace.first.params["dimension_numbers"])
    if kernel is None or bias is None or kernel.ndim != 2 or _tuples(dimensions) != contracted:
        return None
    return Linear(kernel.shape[1], bias=bool(bias)), {"kernel": kernel, **bias}


def _tuples(tree: Any) -> Any:
    return tuple(map(_tuples, tree)) if isinstance(tree, tuple | list) else tree


def _conv(trace: _Trace) -> FoundLayer | None:
    kernel, bias, how = trace.const(trace.first.invars[1]), trace.bias(), trace.first.params
    n = trace.x.ndim - 2
    places, dimensions = tuple(range(1, n + 1)), how["dimension_numbers"]
    last = (0, n + 1, *places)
    channels_last = (dimensions.lhs_spec, dimensions.out_spec) == (last, last)
    kernel_last = dimensions.rhs_spec == (n + 1, n, *range(n))
    plain = how["batch_group_count"] == 1 and set(how["lhs_dilation"]) <= {1}
    if kernel is None or bias is None or not (channels_last and kernel_last and plain):
        return None
    layer = Conv(
        kernel.shape[-1],
        tuple(kernel.shape[:n]),
        tuple(how["window_strides"]),
        tuple(how["padding"]),
        tuple(how["rhs_dilation"]),
        how["feature_group_count"],
        bias=bool(bias),
    )
    return layer, {"kernel": kernel, **bias}


def _window(eqn: JaxprEqn) -> tuple[Any, ...] | None:
    """Window, strides, padding and dilation over the axes between batch and channels."""
    how = eqn.params
    names = ("window_dimensions", "window_strides", "padding", "window_dilation")
    outer = [(how[name][0], how[name][-1]) for name in names]
    if outer != [(1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)] or set(how["base_dilation"]) != {1}:
        return None
    return tuple(tuple(how[name][1:-1]) for name in names)


def _max_pool(trace: _Trace) -> FoundLayer | None:
    window = _window(trace.first)
    return None if window is None or trace.rest else (MaxPool(*window), None)


def _average_pool(trace: _Trace) -> FoundLayer | None:
    window = _window(trace.first)
    if window is None or [e.primitive.name for e in trace.rest] != ["div"]:
        return None
    total, count = trace.rest[0].invars
    mean = isinstance(count, Literal) and float(count.val) == math.prod(window[0])
    return (AveragePool(*window), None) if mean and total is trace.first.outvars[0] else None


def _flatten(trace: _Trace) -> FoundLayer | None:
    flat = (trace.x.shape[0], math.prod(trace.x.shape[1:]))
    return None if trace.rest or trace.y.shape != flat else (Flatten(), None)


_PATTERNS: dict[str, Callable[[_Trace], FoundLayer | None]] = {
    "dot_general": _linear,
    "conv_general_dilated": _conv,
    "reduce_window_max": _max_pool,
    "reduce_window_sum": _average_pool,
    "reshape": _flatten,
}


def _is_elementwise(closed: ClosedJaxpr) -> bool:
    """Whether it is, and closes over nothing whose cotangent would be missed."""
    same = closed.in_avals[0].shape == closed.out_avals[0].shape
    dtypes = {closed.in_avals[0].dtype, closed.out_avals[0].dtype}
    if closed.consts or not same or len(dtypes) != 1:
        return False
    return find_structure(closed, 0, 1).diagonal
