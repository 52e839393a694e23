"""distrax: log likelihood of a hidden Markov model of 4 states by HMM.forward, 300 steps."""

import distrax
import jax.numpy as jnp
import numpy as np


def program():
    rng = np.random.default_rng(0)

    def loss(a, means, ys):
        made = distrax.HMM(
            distrax.Categorical(logits=jnp.zeros(4)),
            distrax.Categorical(logits=a),
            distrax.Normal(means, jnp.ones(4)),
        )
        return -made.forward(ys)[0] / 300

    return loss, (rng.normal(size=(4, 4)), np.arange(4.0), rng.normal(size=300))
