"""equinox: a GRU checked by jaxtyping and beartype, 300 steps, 16 units, batch by vmap."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, jaxtyped

try:
    from beartype import beartype as typechecker
except ImportError:
    from typeguard import typechecked as typechecker


def program():
    cell = eqx.nn.GRUCell(4, 16, key=jax.random.key(0))
    xs = np.random.default_rng(0).normal(size=(8, 300, 4))
    arrays, static = eqx.partition(cell, eqx.is_array)

    @jaxtyped(typechecker=typechecker)
    def step(cell, h: Float[Array, "16"], x: Float[Array, "4"]) -> Float[Array, "16"]:
        return cell(x, h)

    def loss(arrays, xs):
        cell = eqx.combine(arrays, static)

        def one(xs):
            return jax.lax.scan(lambda h, x: 2 * (step(cell, h, x),), jnp.zeros(16), xs)[1]

        return jnp.mean(jax.vmap(one)(xs) ** 2)

    return loss, (jax.tree.map(lambda a: a.astype(float), arrays), xs)
