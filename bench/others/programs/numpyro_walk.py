"""numpyro: a Gaussian random walk's and an Euler-Maruyama path's density, 300 steps."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist


def program():
    ys = np.cumsum(0.1 * np.random.default_rng(0).normal(size=(301,)))
    ts = np.linspace(0, 3, 301)

    def loss(theta, ys):
        sde = lambda x, t: (-theta * x, 0.3 * jnp.ones_like(x))  # noqa: E731
        path = dist.EulerMaruyama(ts, sde, dist.Normal(0.0, 1.0))
        draw = path.sample(jax.random.key(0))
        return -path.log_prob(ys) / 300 + jnp.mean(draw**2)

    return loss, (np.array(0.7), ys)
