"""Programs around a while loop, as functions of an array of parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class LoopProgram:
    """``read(loop(cond, body, init))`` of parameters p.

    Attributes:
      p: parameters.
      init: ``p -> carry``.
      cond, body: ``(p, carry) -> bool`` and ``(p, carry) -> carry``.
      read: ``carry -> number``.
    """

    p: Sequence[float]
    init: Callable[[Any], Any]
    cond: Callable[[Any, Any], Any]
    body: Callable[[Any, Any], Any]
    read: Callable[[Any], Any] = lambda carry: carry

    def run(self, loop: Callable, p: jax.Array) -> Any:
        """The last carry, by some loop."""
        return loop(lambda c: self.cond(p, c), lambda c: self.body(p, c), self.init(p))

    def of_steps(self, p: jax.Array, steps: int) -> jax.Array:
        """What is read after a known number of steps."""
        first = jax.tree.map(jnp.asarray, self.init(p))
        step = lambda c, _: (jax.tree.map(_like, self.body(p, c), c), None)  # noqa: E731
        return self.read(lax.scan(step, first, None, length=steps)[0])

    def by_python(self, p: jax.Array) -> jax.Array:
        """What is read of a loop that Python runs."""
        carry = self.init(p)
        while self.cond(p, carry):
            carry = self.body(p, carry)
        return self.read(carry)


def _like(new: jax.Array, old: jax.Array) -> jax.Array:
    return lax.convert_element_type(new, old.dtype)


def _newton(p, x):
    return x - (x**3 - p[0] * x - p[1]) / (3 * x * x - p[0])


def _ode_step(p, state):
    """Heun and Euler, with a step that is tried again if they differ by too much."""
    t, y, h, _ = state
    slope = lambda y: jnp.sin(p[0] * y) - p[1] * y  # noqa: E731
    h = jnp.minimum(h, 1 - t)
    a = slope(y)
    b = slope(y + h * a)
    error = jnp.abs(h * (b - a) / 2)
    taken = error < 1e-2
    h_next = h * jnp.clip(0.9 * jnp.sqrt(1e-2 / error), 0.3, 2)
    t, y = (jnp.where(taken, new, old) for new, old in ((t + h, t), (y + h * (a + b) / 2, y)))
    return t, y, h_next, state[3] + taken


def _ball(p, state):
    x, v, bounces = state
    x, v = x + 0.1 * v, v - 0.1 * p[0]
    hit = x < 0
    return jnp.where(hit, -p[1] * x, x), jnp.where(hit, -p[1] * v, v), bounces + hit


def _halves(p, ends):
    a, b = ends
    middle = (a + b) / 2
    right = jnp.cos(middle) > middle
    return jnp.where(right, middle, a), jnp.where(right, b, middle)


def _power(p, state):
    v, _ = state
    new = p.reshape(2, 2) @ v
    new = new / jnp.linalg.norm(new)
    return new, jnp.max(jnp.abs(new - v))


def _propose(p, state):
    key, *_ = state
    key, first, second = jax.random.split(key, 3)
    x = p[0] + p[1] * jax.random.normal(first, dtype=p.dtype)
    return key, x, jax.random.uniform(second) < 0.1 * jnp.exp(-lax.stop_gradient(x))


def _euclid(p, state):
    a, b, x = state
    return b, a % b, jnp.sin(p[0] * x) + p[1] * (a // b)


PROGRAMS = {
    "newton": LoopProgram(
        (2.0, 3.0),
        lambda p: 2 * p[1],
        lambda p, x: jnp.abs(x**3 - p[0] * x - p[1]) > 1e-4,
        _newton,
    ),
    "ode": LoopProgram(
        (2.0, 0.7),
        lambda p: (0.0 * p[0], p[0], 0.4 + 0 * p[0], 0),
        lambda p, s: s[0] < 1,
        _ode_step,
        lambda s: s[1],
    ),
    "ball": LoopProgram(
        (9.81, 0.6),
        lambda p: (1.0 + 0 * p[0], 0.3 * p[1], 0),
        lambda p, s: s[2] < 2,
        _ball,
        lambda s: s[0] + s[1],
    ),
    "bisection": LoopProgram(
        (0.1, 1.2),
        lambda p: (p[0], p[1]),
        lambda p, ends: ends[1] - ends[0] > 1e-2,
        _halves,
        lambda ends: ends[0] * ends[1],
    ),
    "power": LoopProgram(
        (2.0, 0.3, 0.5, 0.4),
        lambda p: (jnp.array([0.6, 0.8], p.dtype), jnp.ones((), p.dtype)),
        lambda p, s: s[1] > 1e-3,
        _power,
        lambda s: s[0][0] + 2 * s[0][1],
    ),
    "rejection": LoopProgram(
        (0.5, 1.5),
        lambda p: (jax.random.key(7), 0 * p[0], False),
        lambda p, s: ~s[2],
        _propose,
        lambda s: s[1] ** 2,
    ),
    "fixed point": LoopProgram(
        (0.9, 0.4),
        lambda p: (p[1], p[1] + 1),
        lambda p, s: jnp.abs(s[0] - s[1]) > 1e-3,
        lambda p, s: (jnp.cos(p[0] * s[0]), s[0]),
        lambda s: s[0],
    ),
    "gcd": LoopProgram(
        (0.9, 0.4),
        lambda p: (jnp.int32(233), jnp.int32(144), p[1]),
        lambda p, s: s[1] != 0,
        _euclid,
        lambda s: s[2] * s[0],
    ),
    "never runs": LoopProgram(
        (0.0, 2.0),
        lambda p: jnp.minimum(p[0], p[1]),
        lambda p, x: x > 0,
        lambda p, x: jnp.sqrt(x) * p[1],
    ),
}
