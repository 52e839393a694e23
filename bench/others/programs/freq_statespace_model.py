"""freq-statespace: simulation of a linear model (BLA), 2 states, 400 samples; output error."""

import equinox as eqx
import freq_statespace as fss
import jax.numpy as jnp
import numpy as np


def model():
    norm = fss.Normalizer(
        u_mean=np.zeros(1), u_std=np.ones(1), y_mean=np.zeros(1), y_std=np.ones(1)
    )
    return fss.ModelBLA(
        A=jnp.array([[0.9, 0.1], [-0.2, 0.7]]),
        B_u=jnp.array([[1.0], [0.5]]),
        C_y=jnp.array([[1.0, -0.5]]),
        D_yu=jnp.array([[0.1]]),
        ts=1.0,
        norm=norm,
    )


def program():
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=(400, 1, 1)), rng.normal(size=(400, 1, 1))
    base = model()

    def loss(a, b, x0, u):
        made = eqx.tree_at(lambda m: (m.A, m.B_u), base, (a, b))
        return jnp.mean((made._simulate(u, x0)[0] - y) ** 2)

    return loss, (base.A, base.B_u, np.zeros((2, 1)), u)
