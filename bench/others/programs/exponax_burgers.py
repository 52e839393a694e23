"""exponax: Burgers' equation in one dimension, 64 points, 100 steps; fit of the start."""

import exponax as ex
import jax.numpy as jnp
import numpy as np


def program():
    x = np.linspace(0, 1, 64, endpoint=False)
    start = np.sin(2 * np.pi * x)[None]
    stepper = ex.stepper.Burgers(1, 1.0, 64, 0.005, diffusivity=0.01)

    def loss(u0):
        return jnp.mean(ex.rollout(stepper, 100)(u0) ** 2 * (1 + jnp.cos(2 * jnp.pi * x)))

    return loss, (start,)
