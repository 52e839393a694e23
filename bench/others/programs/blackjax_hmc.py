"""blackjax: 60 steps of HMC over a Gaussian; the derivative of the mean by the target's scale."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np


def program():
    def loss(log_scale, start):
        density = lambda x: -0.5 * jnp.sum((x / jnp.exp(log_scale)) ** 2)  # noqa: E731
        hmc = blackjax.hmc(density, 0.1, jnp.ones(3), num_integration_steps=5)
        step = lambda state, key: 2 * (hmc.step(key, state)[0],)  # noqa: E731
        _, states = jax.lax.scan(step, hmc.init(start), jax.random.split(jax.random.key(0), 60))
        return jnp.mean(states.position**2)

    return loss, (np.array([0.1, 0.0, -0.1]), np.ones(3))
