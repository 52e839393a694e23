"""jaxpole: a time-varying all-pole filter of order 2, 500 samples; output error."""

import jax.numpy as jnp
import numpy as np
from jaxpole import filter as filters


def program(name="allpole"):
    rng = np.random.default_rng(0)
    x, a = (
        rng.normal(size=(2, 500)),
        np.tile([-0.9, 0.3], (2, 500, 1)) + 0.05 * rng.normal(size=(2, 500, 2)),
    )
    zi = rng.normal(size=(2, 2))

    def loss(x, a, zi):
        return jnp.mean((getattr(filters, name)(x, a, zi) - jnp.roll(x, 1, 1)) ** 2)

    return loss, (x, a, zi)
