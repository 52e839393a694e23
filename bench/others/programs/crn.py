"""crn-jax: a birth-death process by simulate_trajectory, 30 intervals; derivative by the rate."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from crn_jax.gillespie import simulate_trajectory


class State(NamedTuple):
    time: jax.Array
    x: jax.Array
    next_reaction_time: jax.Array


def program():
    def loss(log_birth):
        propensities = lambda s, u: jnp.stack([jnp.exp(log_birth), 0.1 * s.x])  # noqa: E731
        react = lambda s, j: s._replace(x=s.x + jnp.where(j == 0, 1.0, -1.0))  # noqa: E731
        start = State(jnp.array(0.0), jnp.array(5.0), jnp.array(jnp.inf))
        states = simulate_trajectory(
            key=jax.random.key(0),
            initial_state=start,
            timestep=0.5,
            n_steps=30,
            max_steps=50,
            compute_propensities_fn=propensities,
            apply_reaction_fn=react,
        )
        return jnp.mean(states.x) + jnp.mean(states.time)

    return loss, (np.array(0.3),)
