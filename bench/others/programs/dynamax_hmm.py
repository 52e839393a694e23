"""dynamax: marginal log likelihood of a hidden Markov model, 4 states, hmm_smoother, 300 steps."""

import jax
import jax.numpy as jnp
import numpy as np
from dynamax.hidden_markov_model import hmm_smoother


def program():
    rng = np.random.default_rng(0)

    def loss(a, means, ys):
        lls = -0.5 * (ys[:, None] - means) ** 2
        made = hmm_smoother(jnp.ones(4) / 4, jax.nn.softmax(a, -1), lls)
        return -made.marginal_loglik / 300 + jnp.mean(made.smoothed_probs[:, 0] ** 2)

    return loss, (rng.normal(size=(4, 4)), np.arange(4.0), rng.normal(size=300))
