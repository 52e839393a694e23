"""jax-progress: a roll-out of tanh, 200 steps, the meter's state in the carry."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_progress import TqdmProgressMeter


def program():
    def loss(w, h):
        meter = TqdmProgressMeter(refresh_steps=50, total=200)

        def step(carry, i):
            h, state = carry
            state = meter.step(state)
            h = jnp.tanh(w @ h + jnp.sin(i))
            return (h, state), h

        (h, state), hs = jax.lax.scan(step, (h, meter.init()), jnp.arange(200))
        meter.close(state)
        return jnp.mean(hs**2)

    return loss, (np.eye(4) * 0.5 + 0.1, np.ones(4))
