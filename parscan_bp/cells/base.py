"""What a recurrent cell states about itself."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.operators import Operator
from parscan_bp.types import Array, PyTree


class Cell(abc.ABC):
    """A recurrent step with an analytic Jacobian.

    ``scan(functools.partial(cell, params), carry, xs)`` uses the Jacobian; a plain closure
    ``lambda c, x: cell(params, c, x)`` is linearised by automatic differentiation. Arrays
    are ``(*batch, features)``; every method accepts any leading axes.

    A cell of one's own is one class: of this one, or of `Gated`, where one product with the hidden
    state feeds elementwise gates, which asks for less and can be fused. A cell's output is a leaf
    of its new carry, or else `pull_params` is not used. JAX has to be able to differentiate
    `pull_carry` and `pull_params` once more: Hessian-vector products do.

    Attributes:
      is_value: whether the methods depend on nothing but their arguments and the cell's fields,
        which are hashable, so that a trace serves all equal cells. It says nothing about
        subclasses; where it is not stated, a trace serves one ``functools.partial(cell, params)``,
        as in `jax.lax.scan`.
    """

    is_value: ClassVar[bool] = False

    @abc.abstractmethod
    def init(self, key: Array, inputs: int, hidden: int, dtype=float) -> PyTree:
        """Parameters: weights normal with variance 1/fan-in, zero biases."""

    @abc.abstractmethod
    def initial_carry(self, batch_shape: tuple[int, ...], hidden: int, dtype=float) -> PyTree:
        """A carry of zeros."""

    @abc.abstractmethod
    def __call__(self, params: PyTree, carry: PyTree, x: Array) -> tuple[PyTree, Array]:
        """One step: ``(new_carry, y)``."""

    @abc.abstractmethod
    def jacobian(self, params: PyTree, carry: PyTree, x: Array, new_carry: PyTree) -> Operator:
        """The transposed Jacobian A_t, on the joined carry ``(*batch, features)``."""

    def gates(self, params: PyTree, carry: PyTree, x: Array, new_carry: PyTree) -> PyTree:
        """What the step makes on its way that `pull_carry` reads; the input, unless said here."""
        return x

    @abc.abstractmethod
    def pull_carry(
        self, params: PyTree, carry: PyTree, gates: PyTree, new_carry: PyTree, cts: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Cotangents of the pre-activations and of the carry: what depends on the next step.

        The cotangent of the carry is A_t times ``cts``, written as cheaply as it can be: but
        multiplied by one slope after the other, as the sweep says it is.

        Args:
          params: parameters.
          carry: the carry that entered.
          gates: see `gates`.
          new_carry: the carry that left.
          cts: cotangents of ``new_carry``.

        Returns:
          ``(u, carry_cts)``; u is whatever `pull_params` takes.
        """

    @abc.abstractmethod
    def pull_params(
        self, params: PyTree, carry: PyTree, x: Array, u: PyTree
    ) -> tuple[PyTree, Array]:
        """Cotangents of the parameters, summed over all leading axes, and of the input.

        Args:
          params: parameters.
          carry: the carry that entered.
          x: the input.
          u: cotangents of the pre-activations, from `pull_carry`.
        """

    def pullback(
        self, params: PyTree, carry: PyTree, x: Array, new_carry: PyTree, cts: PyTree
    ) -> tuple[PyTree, PyTree, Array]:
        """Cotangents of the parameters, summed over all leading axes, of the carry, of the input.

        Args:
          params, carry, x, new_carry, cts: see `pull_carry`.
        """
        gates = self.gates(params, carry, x, new_carry)
        u, carry_cts = self.pull_carry(params, carry, gates, new_carry, cts)
        param_cts, x_ct = self.pull_params(params, carry, x, u)
        return param_cts, carry_cts, x_ct


def through_tanh(ct: Array, t: Array) -> Array:
    """The cotangent before a tanh of value ``t``, multiplied in the order in which JAX does it.

    So does what `Cell.pull_carry` returns: slopes multiplied by one another leave the range where
    the cotangent, multiplied by one after the other, does not.
    """
    if hasattr(jax.lax, "one_minus_square"):  # from jax 0.12 on
        return ct * jax.lax.one_minus_square(t)
    part = ct * (1 - t)
    return part + part * t


def through_sigmoid(ct: Array, s: Array) -> Array:
    """The cotangent before a sigmoid of value ``s``; see `through_tanh`."""
    return ct * (s * (1 - s))


def in_dtypes_of(params: Mapping[str, Array], cotangents: Mapping[str, Array]) -> dict[str, Array]:
    """The cotangents of those ``params`` that there are, each in its parameter's dtype."""
    return {
        name: ct.astype(params[name].dtype) for name, ct in cotangents.items() if name in params
    }


def sum_leading(ct: Array) -> Array:
    """The sum over all axes but the last: the cotangent of a bias."""
    return ct.sum(tuple(range(ct.ndim - 1)))


def normal(key: Array, rows: int, cols: int, dtype) -> Array:
    """A weight matrix of variance 1/rows."""
    return jax.random.normal(key, (rows, cols), dtype) / jnp.sqrt(jnp.asarray(rows, dtype))
