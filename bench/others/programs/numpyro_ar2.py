"""numpyro: log density of an AR(2) process, by contrib.control_flow.scan, 300 steps."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density


def program():
    ys = np.random.default_rng(0).normal(size=300)

    def model(ys):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))

        def step(carry, y):
            before, last = carry
            mean = a[0] * last + a[1] * before
            y = numpyro.sample("y", dist.Normal(mean, sigma), obs=y)
            return (last, y), mean

        scan(step, (0.0, 0.0), ys)

    def loss(a, sigma, ys):
        return -log_density(model, (ys,), {}, {"a": a, "sigma": jnp.exp(sigma)})[0] / 300

    return loss, (np.array([0.5, -0.2]), np.array(0.1), ys)
