"""Steps drawn at random, of what native loops are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

UNARY = (
    jnp.tanh,
    jax.nn.sigmoid,
    jnp.sin,
    jnp.abs,
    jnp.square,
    jax.nn.relu,
    lambda v: jnp.exp(-jnp.square(v)),
    lambda v: jnp.log(1 + jnp.square(v)),
    lambda v: jnp.sqrt(1 + jnp.square(v)),
    lambda v: jax.lax.rsqrt(1 + jnp.square(v)),
    lambda v: jnp.expm1(-jnp.square(v)),
    jax.nn.softplus,
    lambda v: jnp.sign(v) * jnp.square(v),
    lambda v: 1 - v,
    lambda v: jnp.where(v > 0.1, v, 0.3 * v),
    lambda v: v**3 / 3,
)
BINARY = (
    jnp.add,
    jnp.multiply,
    jnp.subtract,
    jnp.maximum,
    jnp.minimum,
    lambda a, b: a / (1 + jnp.square(b)),
    lambda a, b: jnp.where((a > b) & ~(b > 0.5), a, b),
)


class Drawn:
    """A step, its shared values, first carry and inputs.

    Args:
      seed: of it.
      dtype: of its numbers.
    """

    def __init__(self, seed: int, dtype):
        self._seed = seed
        draw = np.random.default_rng(seed)
        self.rows, self.columns = int(draw.integers(1, 8)), int(draw.integers(1, 40))
        self.vector = bool(draw.random() < 0.2)
        self.length = int(draw.integers(1, 7))
        self.reverse = bool(draw.random() < 0.5)
        n = self.columns

        def normal(*shape, scale=1.0):
            return jnp.asarray(draw.normal(size=shape) * scale, dtype)

        lead = () if self.vector else (self.rows,)
        wide = int(draw.integers(1, 4)) * n
        self.shared = {
            "square": normal(n, n, scale=n**-0.5),
            "turned": normal(n, n, scale=n**-0.5),
            "wide": normal(n, wide, scale=n**-0.5),
            "row": normal(n),
            "one": normal(),
        }
        self.init = normal(*lead, n), normal(*lead, n)
        self.xs = normal(self.length, *lead, n)

    def step(self, shared, carry, x):
        draw = np.random.default_rng(self._seed + 10**6)
        n, values = self.columns, [*carry, x]

        def pick():
            return values[int(draw.integers(len(values)))]

        def function(among):
            return among[int(draw.integers(len(among)))]

        for _ in range(int(draw.integers(3, 9))):
            kind = int(draw.integers(9))
            if kind <= 1:
                value = function(UNARY)(pick())
            elif kind <= 3:
                value = function(BINARY)(pick(), pick())
            elif kind == 4:
                value = pick() @ shared["square"]
            elif kind == 5:
                value = pick() @ shared["turned"].T
            elif kind == 6:
                product = pick() @ shared["wide"]
                at = int(draw.integers(product.shape[-1] // n)) * n
                value = product[..., at : at + n]
            elif kind == 7:
                value = pick() * shared["row"] + shared["one"]
            elif n > 2 and draw.random() < 0.3:
                value = jnp.pad(pick()[..., 1:-1], [(0, 0)] * (pick().ndim - 1) + [(1, 1)])
            elif n > 1 and draw.random() < 0.3:
                value = jnp.roll(pick(), 1, -1)
            elif n > 1:
                a, b = pick(), pick()
                cut = int(draw.integers(1, n))
                value = jnp.concatenate([a[..., :cut], b[..., cut:]], -1)
            else:
                value = -pick()
            values.append(value)
        new = 0.5 * jnp.tanh(values[-1]) + 0.1 * carry[1], 0.5 * values[-2] / (1 + values[-2] ** 2)
        return new, (values[-3], new[0] if draw.random() < 0.5 else pick())
