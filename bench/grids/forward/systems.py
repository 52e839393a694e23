"""Recurrences from contracting to chaotic: cells, a flow, a double well, two Markov chains.

Each has a strength, which its largest Lyapunov exponent depends on: the gain of a cell's weights,
the forcing of a flow, the length of a chain's moves. The exponent itself is measured.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench.shared import candidates

Update = Callable[[Any, Any, Any], Any]
normal = jax.random.normal


@dataclasses.dataclass(frozen=True, order=True)
class Size:
    """A point of the grid: a system of `hidden` numbers, `batch` rows and `length` steps."""

    system: str
    hidden: int
    batch: int
    length: int
    strength: float

    def __str__(self) -> str:
        shape = f"H={self.hidden} B={self.batch} T={self.length}"
        return f"{self.system} {shape} s={self.strength:g}"

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Size":
        """The point that an entry of a file is about."""
        return cls(**{field.name: entry[field.name] for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class System:
    """A recurrence and its numbers, in float32.

    Attributes:
        update: ``(params, carry, x) -> carry``.
        arguments: params, the first carry, and the inputs.
    """

    update: Update
    arguments: tuple[Any, Any, Any]

    def run(self, scan: candidates.Scan, length: int) -> Callable[..., Any]:
        """The scan, whose outputs are the carries, as a function of the arguments."""

        def run(params: Any, init: Any, xs: Any) -> Any:
            def step(carry: Any, x: Any) -> tuple[Any, Any]:
                new = self.update(params, carry, x)
                return new, new

            return scan(step, init, xs, length=length)

        return run


def elman(w: jax.Array, h: jax.Array, u: jax.Array) -> jax.Array:
    """tanh(h W + u)."""
    return jnp.tanh(h @ w + u)


def gru(w: jax.Array, h: jax.Array, u: jax.Array) -> jax.Array:
    """The cell of Cho and others, reset before the product; no biases."""
    cut = [2 * h.shape[-1]]
    (gates, last), (own, new) = jnp.split(w, cut, -1), jnp.split(u, cut, -1)
    r, z = jnp.split(jax.nn.sigmoid(h @ gates + own), 2, -1)
    return (1 - z) * jnp.tanh((r * h) @ last + new) + z * h


def lstm(w: jax.Array, carry: Any, u: jax.Array) -> Any:
    """Its carry is the pair (h, c)."""
    h, c = carry
    i, f, o, new = jnp.split(h @ w + u, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(new)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lorenz(strength: jax.Array, x: jax.Array, u: jax.Array) -> jax.Array:
    """A step of 0.02 by Runge and Kutta, rho = 28 times the strength; chaotic from 0.88 on."""

    def field(x: jax.Array) -> jax.Array:
        a, b, c = x[..., 0], x[..., 1], x[..., 2]
        return jnp.stack([10 * (b - a), a * (28 * strength - c) - b, a * b - 8 / 3 * c], -1)

    k1 = field(x)
    k2 = field(x + 0.01 * k1)
    k3 = field(x + 0.01 * k2)
    return x + 0.02 / 6 * (k1 + 2 * k2 + 2 * k3 + field(x + 0.02 * k3)) + 1e-3 * u


def two_wells(strength: jax.Array, x: jax.Array, u: jax.Array) -> jax.Array:
    """Langevin dynamics in (x^2 - 1)^2 / 4, neighbours coupled. Steps of a strength beyond 2 leave
    the well's bottom: they oscillate about it, and then jump between the wells."""
    pull = 0.02 * (jnp.roll(x, 1, -1) - x)
    return x - 0.5 * strength * (x**3 - x - pull) + 0.03 * jnp.clip(u, -2, 2)


def _log_density(x: jax.Array) -> jax.Array:
    """Of a shell about the origin, up to a constant."""
    return -2 * (jnp.sqrt(1 + jnp.sum(x * x, -1)) - 2) ** 2


def random_walk(strength: jax.Array, x: jax.Array, u: Any) -> jax.Array:
    """Metropolis's chain, moves of strength / sqrt(H): a step that jumps where it accepts."""
    move, coin = u
    proposed = x + strength / math.sqrt(x.shape[-1]) * move
    accepted = jnp.log(coin) < _log_density(proposed) - _log_density(x)
    return jnp.where(accepted[:, None], proposed, x)


def langevin(strength: jax.Array, x: jax.Array, u: jax.Array) -> jax.Array:
    """Unadjusted Langevin dynamics of the same density, in steps of 0.1 times the strength."""
    slope = jax.grad(lambda x: jnp.sum(_log_density(x)))(x)
    return x + 0.1 * strength * slope + jnp.sqrt(0.2 * strength) * u


# Of a cell, how many times H numbers its weights make of the carry.
CELLS = {"elman": 1, "gru": 3, "lstm": 4}
UPDATES: dict[str, Update] = {
    "elman": elman,
    "gru": gru,
    "lstm": lstm,
    "lorenz": lorenz,
    "two-wells": two_wells,
    "random-walk": random_walk,
    "langevin": langevin,
}


def make(size: Size, key: jax.Array) -> System:
    """Draws parameters, first carry and inputs, all of order 1 but for the strength."""
    weights, start, inputs, coins = jax.random.split(key, 4)
    parts, h = CELLS.get(size.system, 1), size.hidden
    params: Any = jnp.float32(size.strength)
    if size.system in CELLS:
        params = params * normal(weights, (h, parts * h)) / math.sqrt(h)
    init: Any = normal(start, (size.batch, h))
    xs: Any = normal(inputs, (size.length, size.batch, parts * h))
    if size.system == "two-wells":
        init = jnp.tanh(init)  # from farther out a step overshoots, and leaves the range
    if size.system == "lstm":
        init = jnp.tanh(init), init
    if size.system == "random-walk":
        xs = xs, jax.random.uniform(coins, (size.length, size.batch))
    return System(UPDATES[size.system], (params, init, xs))


@functools.partial(jax.jit, static_argnums=0)
def _growth(update: Update, params: Any, init: Any, xs: Any) -> jax.Array:
    """The logarithm of what a tangent has grown by."""

    def norm(tree: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))

    def step(loop: Any, x: Any) -> tuple[Any, None]:
        carry, direction, total = loop
        carry, moved = jax.jvp(lambda c: update(params, c, x), (carry,), (direction,))
        # Of what has died out the logarithm is that of the smallest number, not minus infinity.
        size = jnp.maximum(norm(moved), jnp.finfo(jnp.float32).tiny)
        return (carry, jax.tree.map(lambda a: a / size, moved), total + jnp.log(size)), None

    ones = jax.tree.map(jnp.ones_like, init)
    unit = jax.tree.map(lambda a: a / norm(ones), ones)
    return jax.lax.scan(step, (init, unit, jnp.zeros(())), xs)[0][2]


def exponent(system: System, length: int) -> float:
    """The largest Lyapunov exponent per step, of all rows together.

    Source: Benettin, Galgani, Giorgilli, Strelcyn, Meccanica 15 (1980).
    """
    return float(_growth(system.update, *system.arguments)) / length
