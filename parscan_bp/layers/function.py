"""Exact fallbacks for any function: a matrix-free operator, and coloured JVPs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from parscan_bp.arguments import described
from parscan_bp.jaxprs.batching import batched
from parscan_bp.layers.base import Layer, flat
from parscan_bp.operators import Dense, MatrixFree
from parscan_bp.types import Array, PyTree

OfExample = Callable[[PyTree, Array], Array]
"""(params, x) -> y for one entry of the batch, without a batch axis."""


@final
@dataclasses.dataclass(frozen=True)
class Function(Layer):
    """y = f(params, x), one batch entry at a time; its transposed Jacobian by VJP, matrix-free.

    Only the sequential solver takes matrix-free operators. A function with a VJP of its own
    (`jax.custom_vjp`) has no forward-mode, as in JAX.

    Args:
      function: f of parameters and one input, without the batch axis.

    Source: BPPSA eq. 3 by vector-Jacobian products.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Function
      >>> layer, x = Function(lambda p, x: p * jnp.cumsum(x)), jnp.ones((1, 3))
      >>> layer.adjoint_operator(2.0, x, x).matvec(jnp.ones((1, 3))).tolist()
      [[6.0, 4.0, 2.0]]
    """

    function: OfExample

    def __post_init__(self):
        _check_function(self.function)

    def apply(self, params, x):
        return _batched(self.function, params, x)

    def adjoint_operator(self, params, x, y):
        size = jax.ShapeDtypeStruct(flat(x).shape[1:], x.dtype)
        params = jax.tree.map(jnp.asarray, params)
        linear = Partial(_Push(self.function, x.shape[1:]), params, flat(x))
        stacked = [False] * len(jax.tree.leaves(params)) + [True]
        return MatrixFree(linear, stacked, size).transpose()

    def pullback(self, params, x, y, ct):
        return _pullback(self.function, params, x, ct)


@dataclasses.dataclass(frozen=True)
class _Push:
    """J v at x, all flat. Parameters and input are arguments: nothing is kept per column."""

    function: OfExample
    shape: tuple[int, ...]

    def __call__(self, params, x, v):
        f = lambda x: jnp.ravel(self.function(params, x.reshape(self.shape)))  # noqa: E731
        return jax.jvp(f, (x,), (v,))[1]

    def transposed(self, params, x, ct):
        """J^T ct by VJP, which a function may have of its own, with no JVP beside it."""
        f = lambda x: jnp.ravel(self.function(params, x.reshape(self.shape)))  # noqa: E731
        return jax.vjp(f, x)[1](ct)[0]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Coloured(Layer):
    """y = f(params, x), one batch entry at a time, with a Jacobian of known sparsity.

    Columns of the Jacobian without a common row share a colour, and one JVP with a vector of
    ones at the columns of a colour gives all their entries: as many JVPs as colours, exact
    whatever f is. The pattern has to hold every entry that can differ from zero;
    `check_layer` tells whether it does.

    Args:
      function: f of parameters and one input, without the batch axis.
      outputs: for each entry of the pattern its flat output index.
      inputs: for each entry of the pattern its flat input index.

    Raises:
      TypeError: if an index is no integer.
      ValueError: if the two are not of one length or hold a negative index; by `adjoint_operator`,
        if an index is too large.

    Source: Curtis, Powell, Reid, 1974; Coleman and More, 1983.

    Example: a difference of neighbours takes two colours, whatever its size.
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Coloured
      >>> layer = Coloured(lambda _, x: x[1:] * x[:-1], [0, 0, 1, 1], [0, 1, 1, 2])
      >>> layer.colours.tolist()
      [0, 1, 0]
      >>> x = jnp.array([[1.0, 2.0, 3.0]])
      >>> layer.adjoint_operator(None, x, layer.apply(None, x)).matrix.tolist()
      [[[2.0, 0.0], [1.0, 3.0], [0.0, 2.0]]]
    """

    function: OfExample
    outputs: np.ndarray
    inputs: np.ndarray

    def __post_init__(self):
        _check_function(self.function)
        for name in ("outputs", "inputs"):
            indices = _indices(name, getattr(self, name))
            if (indices < 0).any():
                raise ValueError(f"{name}: got {indices.min()}; indices of at least 0 are wanted")
            object.__setattr__(self, name, indices)
        if len(self.outputs) != len(self.inputs):
            raise ValueError(
                f"inputs: got {len(self.inputs)} indices for {len(self.outputs)} outputs; one "
                "for each entry of the pattern is wanted"
            )

    @functools.cached_property
    def colours(self) -> np.ndarray:
        """The colour of each input; an input without entries has colour 0."""
        columns: dict[int, list[int]] = {}
        for row, column in zip(self.outputs.tolist(), self.inputs.tolist(), strict=True):
            columns.setdefault(column, []).append(row)
        used: list[set[int]] = []  # rows that each colour has covered
        colours = np.zeros(max(columns, default=-1) + 1, np.int64)
        for column in sorted(columns):
            rows = columns[column]
            free = (k for k, covered in enumerate(used) if covered.isdisjoint(rows))
            colour = next(free, len(used))
            if colour == len(used):
                used.append(set())
            used[colour].update(rows)
            colours[column] = colour
        return colours

    def apply(self, params, x):
        return _batched(self.function, params, x)

    def entries(self, params: PyTree, x: Array) -> Array:
        """The Jacobian's entries (batch, nnz), in the order of the pattern."""
        size = flat(x).shape[1]
        colours = np.zeros(size, np.int64)
        colours[: len(self.colours)] = self.colours
        seeds = jnp.asarray(np.eye(colours.max(initial=0) + 1)[colours].T, x.dtype)
        push = _Push(self.function, x.shape[1:])

        def one(x):
            # Inside shard_map a tangent varies over the mesh axes of its primal.
            columns = batched(lambda seed: push(params, x, seed + jnp.zeros_like(x)))(seeds)
            return columns[colours[self.inputs], self.outputs]

        return jax.vmap(one)(flat(x))

    def adjoint_operator(self, params, x, y):
        sizes = (flat(x).shape[1], flat(y).shape[1])
        for name, size in zip(("inputs", "outputs"), sizes, strict=True):
            largest = getattr(self, name).max(initial=-1)
            if largest >= size:
                raise ValueError(f"{name}: got index {largest}; the function has {size} of them")
        data = self.entries(params, x)
        matrix = jnp.zeros_like(data, shape=(len(x), *sizes))
        return Dense(matrix.at[:, self.inputs, self.outputs].set(data))

    def pullback(self, params, x, y, ct):
        return _pullback(self.function, params, x, ct)


def _indices(name: str, value: Any) -> np.ndarray:
    indices = np.asarray(value).reshape(-1)
    if indices.size and indices.dtype.kind not in "iu":
        raise TypeError(f"{name}: got {described(value)}; a sequence of integers is wanted")
    return indices.astype(np.int64)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise TypeError(f"function: got {described(function)}; a function (params, x) is wanted")


def _batched(function: OfExample, params: PyTree, x: Array) -> Array:
    return jax.vmap(function, in_axes=(None, 0))(params, x)


def _pullback(function: OfExample, params: PyTree, x: Array, ct: Array) -> PyTree:
    (cts,) = jax.vjp(lambda params: _batched(function, params, x), params)[1](ct)
    return cts
