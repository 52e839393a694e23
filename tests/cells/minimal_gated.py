"""A cell that the package does not know."""

import jax
import jax.numpy as jnp

import parscan_bp as pb


class MinimalGated(pb.cells.Gated):
    """h' = (1 - z) h + z n with z = sigmoid(a_0) and n = tanh(a_1)."""

    parts = 2

    def activate(self, a):
        return [jax.nn.sigmoid(a[0]), jnp.tanh(a[1])]

    def update(self, gates, past):
        (z, n), (h,) = gates, past
        return [(1 - z) * h + z * n]

    def pull(self, gates, past, new, cts):
        (z, n), (h,), (ct,) = gates, past, cts
        return [(ct * n - ct * h) * z * (1 - z), ct * z * (1 - n * n)], [(1 - z) * ct]
