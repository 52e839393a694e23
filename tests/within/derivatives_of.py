"""What the tests of this folder compare: values, and derivatives of a sum of them with weights."""

import jax
import jax.numpy as jnp


def loss_of(f):
    """A sum of all that ``f`` returns, each number with a weight of its own."""

    def loss(*args):
        leaves = jax.tree.leaves(f(*args))
        return sum(jnp.sum(v * jnp.cos(jnp.arange(v.size)).reshape(v.shape)) for v in leaves)

    return loss


def derivatives_of(f, *args):
    """Values, slopes by all arguments and how they change, and slopes of two rows at once."""
    loss, every = loss_of(f), tuple(range(len(args)))
    tangents = jax.tree.map(lambda v: jnp.sin(1 + v), args)
    slopes = jax.jvp(jax.grad(loss, every), args, tangents)
    rows = jax.tree.map(lambda v: jnp.stack([v, 0.5 * v]), args)
    return f(*args), slopes, jax.vmap(jax.grad(loss, every))(*rows)
