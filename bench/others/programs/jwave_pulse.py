"""jwave: an acoustic pulse on 24 x 24 Fourier modes; energy at the end by the sound speed."""

import jax.numpy as jnp
import numpy as np
from jwave import FourierSeries
from jwave.acoustics import simulate_wave_propagation
from jwave.geometry import Domain, Medium, TimeAxis


def program():
    domain = Domain((24, 24), (1.0, 1.0))
    grid = np.arange(24) - 12
    pulse = np.exp(-(grid[:, None] ** 2 + grid[None] ** 2) / 8.0)[..., None]

    def loss(speed, p0):
        medium = Medium(domain=domain, sound_speed=FourierSeries(speed, domain), pml_size=4)
        times = TimeAxis(dt=0.2, t_end=12.0)
        out = simulate_wave_propagation(medium, times, p0=FourierSeries(p0, domain))
        return jnp.mean(out[-1].on_grid ** 2)

    return loss, (np.ones((24, 24, 1)), pulse)
