"""diffrax: Van der Pol by Tsit5 at fixed steps, 200 steps, loss on 50 saved times."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np


def program(adjoint="DirectAdjoint"):
    def loss(mu, y0):
        field = lambda t, y, mu: jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])  # noqa: E731
        out = dfx.diffeqsolve(
            dfx.ODETerm(field),
            dfx.Tsit5(),
            0.0,
            10.0,
            0.05,
            y0,
            args=mu,
            adjoint=getattr(dfx, adjoint)(),
            saveat=dfx.SaveAt(ts=jnp.linspace(0, 10, 50)),
            max_steps=256,
        )
        return jnp.mean((out.ys[:, 0] - 1) ** 2)

    return loss, (np.array(1.0), np.array([1.0, 0.5]))
