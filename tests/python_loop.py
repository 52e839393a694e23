"""`jax.lax.scan` as a loop in Python: the reference where `lax.scan` itself is wrong.

Second derivatives of a step with a `custom_jvp` whose rule is not the derivative of its function
are wrong by `lax.scan` up to jax 0.10, and right from 0.12 on.
"""

import jax
import jax.numpy as jnp


def python_loop(step, carry, xs):
    """``(carry, ys)``."""
    ys = []
    for t in range(len(jax.tree.leaves(xs)[0])):
        carry, y = step(carry, jax.tree.map(lambda x, t=t: x[t], xs))
        ys.append(y)
    return carry, jax.tree.map(lambda *each: jnp.stack(each), *ys)
