"""What evaluates a recurrence: the interface of the methods that make a forward pass parallel.

A method sees a `Recurrence` and nothing else. It makes a trajectory; how far that is from the true
one is asked afterwards, of every method in the same way, by a certificate.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from parscan_bp.devices import DeviceOrder
from parscan_bp.forward.certified import Certified
from parscan_bp.jaxprs.batching import NOT_KNOWN, unbatchable
from parscan_bp.trees import first_of, map_chunks, nbytes
from parscan_bp.types import Array, PyTree

Carry = PyTree
Inputs = PyTree

BATCH_BYTES = 2**22
"""Bytes of the arguments of steps that are evaluated side by side: as many stay in a cache."""


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """x_t = f(x_{t-1}, u_t), t = 1..n: the update of a carry alone, outputs dropped.

    Attributes:
      step: f, ``(carry, inputs of one step) -> carry``, of the types of ``init``.
      init: x_0, a pytree of floats; of `parscan_bp.scan` the list of its carry's leaves.
      inputs: u_1..u_n, a pytree of arrays with leading axis n, of it alike.
      length: n, at least 1.
      line: the devices of which each has so many steps, one stretch after the other, and x_0;
        ``None`` where all are here.
    """

    step: Callable[[Carry, Inputs], Carry]
    init: Carry
    inputs: Inputs
    length: int
    line: DeviceOrder | None = None

    def entering(self, states: Carry) -> Carry:
        """x_0..x_{n-1}, the carry that enters each step, of x_1..x_n."""
        shift = lambda first, a: jnp.concatenate([jnp.expand_dims(first, 0), a[:-1]])  # noqa: E731
        return jax.tree.map(shift, self.first(jax.tree.map(lambda a: a[-1], states)), states)

    def first(self, last: Carry) -> Carry:
        """The carry that enters the first step: x_0, or of another device the last one before."""
        if self.line is None:
            return self.init
        here, arrived = self.line.is_at(0), self.line.shift(last)
        return jax.tree.map(lambda a, b: jnp.where(here, a, b), self.init, arrived)

    def on_any(self, flag: Array) -> Array:
        """Whether a flag is set, on any of the devices."""
        return flag if self.line is None else self.line.any(flag)

    def largest(self, value: Array) -> Array:
        """The largest of a number, of all devices."""
        return value if self.line is None else self.line.largest(value)

    def residuals(self, states: Carry) -> Carry:
        """r_t = x_t - f(x_{t-1}, u_t), of all steps side by side."""
        return jax.tree.map(jnp.subtract, states, self.images(states))

    def images(self, states: Carry) -> Carry:
        """f(x_{t-1}, u_t), of all steps side by side."""
        return over_steps(self.step, self.length, self.entering(states), self.inputs)


def over_steps(f: Callable[..., PyTree], length: int, *stacked: PyTree) -> PyTree:
    """``f`` of every step's values, stacked; in batches, so that memory has room for them."""
    each = max(1, nbytes(stacked) // length)
    f = side_by_side(f)
    return map_chunks(lambda values: f(*values), stacked, length, max(1, BATCH_BYTES // each))


def side_by_side(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """``f`` of many steps' values at once, stacked.

    Raises:
      NotImplementedError: by the function, if it is not known to give the same for each as alone,
        naming what is to blame.
    """

    def call(*stacked):
        why = unbatchable(jax.make_jaxpr(f)(*first_of(stacked)), orders=0)
        if why is not None:
            raise NotImplementedError(
                f"forward: the step contains {why}, which {NOT_KNOWN}, and a method evaluates many "
                "steps at once; parscan_bp.scan with forward='exact' takes any step"
            )
        return jax.vmap(f)(*stacked)

    return call


class Trajectory(NamedTuple):
    """What a method made of a recurrence.

    Attributes:
      states: x_1..x_n in the structure of `Recurrence.init`, leading axis n.
      iterations: int32, rounds or passes that were made.
      converged: bool, whether the method's own test was met; it is no certificate.
    """

    states: Carry
    iterations: Array
    converged: Array


def with_guess(method: Forward, guess: Carry | None) -> Forward:
    """The same method with another guess, or with none."""
    return dataclasses.replace(method, guess=guess)  # type: ignore[call-arg]


def steps_to_forget(exponent: float, tolerance: float) -> float:
    """Steps after which a difference of 1 is below the tolerance; infinite if it does not shrink.

    Example:
      >>> round(steps_to_forget(-0.5, 1e-6), 1), steps_to_forget(0.0, 1e-6)
      (27.6, inf)
    """
    return math.log(tolerance) / exponent if exponent < 0 else math.inf


@dataclasses.dataclass(frozen=True, repr=False)
class Forward(Certified, abc.ABC):
    """A method that evaluates a recurrence in parallel. A new one defines `evaluate`.

    It may define `expected`, too, from which ``forward="auto"`` knows when it is worth a try.

    Concrete ones are frozen dataclasses. A guess is made of arrays; all other options are hashable.

    Args:
      certify, tolerance, fallback: of every method; see `Certified`.

    Attributes:
      guess: x_1..x_n to begin with, in the structure of the carry with leading axis n; ``None`` is
        x_0 at every step. Methods that take none have ``None``.
      over_devices: whether it takes a recurrence with a `Recurrence.line`, and then returns what is
        here of the trajectory, and the same counts and flags on all devices.
    """

    guess = None
    over_devices: ClassVar[bool] = False

    @abc.abstractmethod
    def evaluate(self, recurrence: Recurrence, tolerance: float) -> Trajectory:
        """The trajectory of a recurrence.

        It runs under `jax.jit` and `jax.vmap`, where entries that are done stay as they are, bit
        for bit, and is never differentiated. It never raises for the sake of a value, and changes
        none: those that are not finite end it as not converged.

        Args:
          recurrence: what is evaluated.
          tolerance: at which residuals x_t - f(x_{t-1}), or changes, it may stop, relative to
            1 + |x_t|. It is below the error that is wanted, and at least 4 roundings of the carry.

        Raises:
          NotImplementedError: if the step is not of the kind that it takes, or may not be mapped
            by `jax.vmap`, see `side_by_side`.
        """

    def expected(self, length: int, exponent: float, tolerance: float) -> int | None:
        """The iterations that it is expected to take, before anything has run.

        Args:
          length: steps of the recurrence.
          exponent: the largest Lyapunov exponent per step.
          tolerance: as of `evaluate`.

        Returns:
          Their number; ``None`` where it is not expected to converge, or nothing is known.
        """
        return None
