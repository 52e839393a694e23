"""bellman-filter-dfsv: log likelihood of 3 returns and 1 factor, information filter, 100 steps."""

import jax.numpy as jnp
import numpy as np
from bellman_filter_dfsv.filters import BellmanFilter
from bellman_filter_dfsv.types import DFSVParams


def program():
    ys = 0.5 * np.random.default_rng(0).normal(size=(100, 3))

    def loss(loadings, phi, mu, ys):
        params = DFSVParams(
            lambda_r=loadings,
            Phi_f=jnp.array([[0.5]]),
            Phi_h=phi,
            mu=mu,
            sigma2=0.1 * jnp.ones(3),
            Q_h=jnp.array([[0.1]]),
        )
        return -BellmanFilter(params).filter(ys).log_likelihood / 100

    return loss, (np.array([[0.9], [0.5], [0.3]]), np.array([[0.9]]), np.array([-1.0]), ys)
