"""cuthbert: log likelihood of a linear Gaussian model by the square-root filter, 300 steps."""

import jax.numpy as jnp
import numpy as np
from cuthbert.filtering import filter as run_filter
from cuthbert.gaussian import kalman


def program(parallel=False):
    ys = np.random.default_rng(0).normal(size=(300, 1))

    def loss(f, log_q, log_r, ys):
        def dynamics(_):
            return f, jnp.zeros(2), jnp.exp(log_q) * jnp.eye(2)

        def observation(y):
            return jnp.array([[1.0, 0.3]]), jnp.zeros(1), jnp.exp(log_r) * jnp.eye(1), y

        made = kalman.build_filter(jnp.zeros(2), jnp.eye(2), dynamics, observation)
        states = run_filter(made, ys, made.init_prepare(), parallel=parallel)
        return -states.log_normalizing_constant[-1] / 300

    return loss, (np.array([[0.9, 0.1], [-0.1, 0.8]]), np.array(-0.5), np.array(0.1), ys)
