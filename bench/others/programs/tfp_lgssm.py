"""tfp-nightly on jax: log likelihood of a linear Gaussian model, 2 states, 100 steps."""

import jax.numpy as jnp
import numpy as np
from tensorflow_probability.substrates.jax import distributions as tfd


def program():
    ys = np.random.default_rng(0).normal(size=(100, 1))

    def loss(f, log_q, ys):
        made = tfd.LinearGaussianStateSpaceModel(
            num_timesteps=100,
            transition_matrix=f,
            transition_noise=tfd.MultivariateNormalDiag(jnp.zeros(2), jnp.exp(log_q) * jnp.ones(2)),
            observation_matrix=jnp.array([[1.0, 0.3]]),
            observation_noise=tfd.MultivariateNormalDiag(jnp.zeros(1), jnp.ones(1)),
            initial_state_prior=tfd.MultivariateNormalDiag(jnp.zeros(2), jnp.ones(2)),
        )
        return -made.log_prob(ys) / 100

    return loss, (np.array([[0.9, 0.1], [-0.1, 0.8]]), np.array(-0.5), ys)
