"""dynamax: marginal log likelihood of a pendulum by the extended Kalman filter, 200 steps."""

import jax.numpy as jnp
import numpy as np
from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter


def program():
    ys = np.random.default_rng(0).normal(size=(200, 1))

    def loss(g, log_r, ys):
        params = ParamsNLGSSM(
            initial_mean=jnp.zeros(2),
            initial_covariance=jnp.eye(2),
            dynamics_function=lambda z: z + 0.05 * jnp.array([z[1], -g * jnp.sin(z[0])]),
            dynamics_covariance=0.01 * jnp.eye(2),
            emission_function=lambda z: jnp.sin(z[:1]),
            emission_covariance=jnp.exp(log_r) * jnp.eye(1),
        )
        return -extended_kalman_filter(params, ys).marginal_loglik / 200

    return loss, (np.array(9.0), np.array(0.1), ys)
