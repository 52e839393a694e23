"""jaxdiffmodal: a tension-modulated string of 20 modes, 500 steps; output energy."""

import jax.numpy as jnp
import numpy as np
from jaxdiffmodal.time_integrators import make_tm_nl_fn, solve_sv_excitation


def program():
    n = np.arange(1, 21)
    force = np.zeros((500, 20))
    force[:5] = 1e3 * np.sin(n)

    def loss(log_damping, omega2, force):
        nl = make_tm_nl_fn(jnp.asarray(n**2 * 1e3), jnp.tile(jnp.asarray(n**2 * 1.0), (20, 1)))
        _, out = solve_sv_excitation(jnp.exp(log_damping), omega2, force, 1e-4, nl)
        return jnp.mean((out @ jnp.cos(n)) ** 2) * 1e6

    return loss, (np.full(20, 1.0), (2 * np.pi * 50 * n) ** 2.0, force)
