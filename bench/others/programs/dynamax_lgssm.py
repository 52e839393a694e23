"""dynamax: marginal log likelihood and smoothed means of a linear Gaussian model, 300 steps."""

import jax.numpy as jnp
import numpy as np
from dynamax.linear_gaussian_ssm.inference import lgssm_smoother, make_lgssm_params


def program():
    ys = np.random.default_rng(0).normal(size=(300, 1))

    def loss(f, log_q, log_r, ys):
        params = make_lgssm_params(
            jnp.zeros(2),
            jnp.eye(2),
            f,
            jnp.exp(log_q) * jnp.eye(2),
            jnp.array([[1.0, 0.3]]),
            jnp.exp(log_r) * jnp.eye(1),
        )
        made = lgssm_smoother(params, ys)
        return -made.marginal_loglik / 300 + jnp.mean(made.smoothed_means**2)

    return loss, (np.array([[0.9, 0.1], [-0.1, 0.8]]), np.array(-0.5), np.array(0.1), ys)
