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
    return *slopes_of(f, *args), slopes_of_rows(f, *args)


def slopes_of(f, *args):
    """Values, and slopes by all arguments and how they change."""
    tangents = jax.tree.map(lambda v: jnp.sin(1 + v), args)
    return f(*args), jax.jvp(jax.grad(loss_of(f), tuple(range(len(args)))), args, tangents)


def slopes_of_rows(f, *args):
    """Slopes by all arguments of two rows at once."""
    rows = jax.tree.map(lambda v: jnp.stack([v, 0.5 * v]), args)
    return jax.vmap(jax.grad(loss_of(f), tuple(range(len(args)))))(*rows)
