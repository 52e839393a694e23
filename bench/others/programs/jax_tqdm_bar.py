"""jax-tqdm: a roll-out of tanh, 200 steps, with scan_tqdm around the body."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_tqdm import scan_tqdm


def program():
    def loss(w, h):
        @scan_tqdm(200)
        def step(h, i):
            h = jnp.tanh(w @ h + jnp.sin(i))
            return h, h

        return jnp.mean(jax.lax.scan(step, h, jnp.arange(200))[1] ** 2)

    return loss, (np.eye(4) * 0.5 + 0.1, np.ones(4))
