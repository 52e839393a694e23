"""A brax-like roll-out (own words): five balls on springs with contact, 300 steps, a done flag."""

import jax
import jax.numpy as jnp
import numpy as np


def program():
    def loss(stiffness, start):
        def step(state, _):
            q, v, done, count = state
            gap = jnp.diff(q)
            force = stiffness * (gap - 1.0)
            total = jnp.pad(force, (0, 1)) - jnp.pad(force, (1, 0)) - 0.1 * v
            total = total + 50 * jax.nn.relu(-q) - 0.3
            v = v + 0.01 * total
            q = jnp.where(done, q, q + 0.01 * v)
            return (q, v, done | (q.max() > 20), count + 1), q

        init = (start, jnp.zeros(5), jnp.array(False), jnp.array(0))
        return jnp.mean(jax.lax.scan(step, init, None, 300)[1] ** 2)

    return loss, (np.full(4, 3.0), np.array([0.5, 1.2, 2.9, 4.0, 5.5]))
