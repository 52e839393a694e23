"""diffrax: the data of a neural CDE, filled and interpolated, then a control."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np


def program():
    ts, ys = np.linspace(0, 1, 200), np.random.default_rng(0).normal(size=(200, 3))

    def loss(ys):
        path = dfx.CubicInterpolation(ts, dfx.backward_hermite_coefficients(ts, ys))
        filled = dfx.rectilinear_interpolation(ts, ys)
        return path.evaluate(0.1, 0.83).sum() ** 2 + jnp.mean(filled[1] ** 2)

    return loss, (ys,)
