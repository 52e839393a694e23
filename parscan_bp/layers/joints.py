"""Where values of a graph meet: sums, products, concatenations."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import final

import jax.numpy as jnp

from parscan_bp.layers.base import flat
from parscan_bp.operators import ChannelSlice, Diagonal, Identity, Operator
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Joint(abc.ABC):
    """y = f(x_1, ..., x_m; theta) with a transposed Jacobian for each x; a frozen configuration.

    What a `Layer` is for one input, for any number of them: arrays are ``(batch, *features)``,
    entries of the batch independent, channels last. A new joint is one class: `apply`,
    `adjoint_operators`, and with parameters also `init` and `pullback`.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Multiply
      >>> xs = jnp.array([[2.0]]), jnp.array([[3.0]])
      >>> y = Multiply().apply(None, *xs)
      >>> [a.diagonal.tolist() for a in Multiply().adjoint_operators(None, xs, y)]
      [[[3.0]], [[2.0]]]
    """

    def init(self, key: Array, features: Sequence[tuple[int, ...]], dtype=float) -> PyTree:
        """Parameters for inputs of shapes ``(batch, *features[k])``; ``None`` without any."""
        del key, features, dtype
        return None

    @abc.abstractmethod
    def apply(self, params: PyTree, *xs: Array) -> Array:
        """y ``(batch, *features)``.

        Raises:
          ValueError: if the sizes of ``params`` and ``xs`` do not fit.
        """

    @abc.abstractmethod
    def adjoint_operators(
        self, params: PyTree, xs: Sequence[Array], y: Array
    ) -> Sequence[Operator]:
        """For each x the transposed Jacobian (d y / d x)^T, (size of x) x (size of y)."""

    def pullback(self, params: PyTree, xs: Sequence[Array], y: Array, ct: Array) -> PyTree:
        """Cotangents of the parameters, summed over the batch, as `jax.vjp` returns them."""
        del params, xs, y, ct
        return None


@final
@dataclasses.dataclass(frozen=True)
class Add(Joint):
    """y = x_1 + ... + x_m, of one shape; each transposed Jacobian is the identity.

    Raises:
      ValueError: by `apply`, if shapes differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Add
      >>> Add().apply(None, jnp.ones((1, 2)), jnp.ones((1, 2))).tolist()
      [[2.0, 2.0]]
    """

    def apply(self, params, *xs):
        _check_same("Add", xs)
        return functools.reduce(jnp.add, xs)

    def adjoint_operators(self, params, xs, y):
        return [Identity(flat(y).shape[1], y.dtype)] * len(xs)


@final
@dataclasses.dataclass(frozen=True)
class Multiply(Joint):
    """y = x_1 ... x_m entry by entry, of one shape; a transposed Jacobian is the others' diagonal.

    Raises:
      ValueError: by `apply`, if shapes differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Multiply
      >>> Multiply().apply(None, jnp.full((1, 2), 2.0), jnp.full((1, 2), 3.0)).tolist()
      [[6.0, 6.0]]
    """

    def apply(self, params, *xs):
        _check_same("Multiply", xs)
        return functools.reduce(jnp.multiply, xs)

    def adjoint_operators(self, params, xs, y):
        ones = jnp.ones_like(flat(y))
        others = [[flat(x) for j, x in enumerate(xs) if j != k] for k in range(len(xs))]
        return [Diagonal(functools.reduce(jnp.multiply, own, ones)) for own in others]


@final
@dataclasses.dataclass(frozen=True)
class Concatenate(Joint):
    """y = (x_1, ..., x_m) side by side along their channels, the last axis.

    Each transposed Jacobian is a `ChannelSlice`: nothing is multiplied.

    Raises:
      ValueError: by `apply`, if shapes differ in another axis.

    Source: Huang et al., 2017, eq. 2 (DenseNet).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.layers import Concatenate
      >>> Concatenate().apply(None, jnp.zeros((1, 2)), jnp.ones((1, 1))).tolist()
      [[0.0, 0.0, 1.0]]
    """

    def apply(self, params, *xs):
        shapes = [tuple(x.shape) for x in xs]
        if min(map(len, shapes)) < 2 or len({shape[:-1] for shape in shapes}) > 1:
            raise ValueError(
                f"Concatenate: got shapes {shapes}; a batch and channels at least, and the same in "
                "all axes but the last, the channels, is wanted"
            )
        return jnp.concatenate(xs, axis=-1)

    def adjoint_operators(self, params, xs, y):
        places, channels, start, found = math.prod(y.shape[1:-1]), y.shape[-1], 0, []
        for x in xs:
            found.append(ChannelSlice(places, channels, start, x.shape[-1], y.dtype))
            start += x.shape[-1]
        return found


def _check_same(name: str, xs: Sequence[Array]) -> None:
    shapes = [tuple(x.shape) for x in xs]
    if len(set(shapes)) > 1:
        raise ValueError(f"{name}: got shapes {shapes}; one shape is wanted, nothing is broadcast")
