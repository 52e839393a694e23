"""What the gradient of a recurrent layer takes, one step after the other, without the rest.

A loop of the transposed products with the recurrent weights, and the products that give the
cotangents of all weights:

    lambda_{t-1} = g_{t-1} + W_h (s_t * lambda_t),    u_t = s_t * lambda_t,
    dW_h = sum_t h_{t-1} u_t^T,   dW_x = sum_t x_t u_t^T,   db = sum_t u_t.

The slopes s_t of all gates are at hand: no activation is evaluated, nothing is stored in the
forward pass, and of an LSTM's two carries there is only one. A gradient that does all that, too,
takes longer, but where XLA compiles its loop otherwise: a loop over a few units may be one kernel,
and then takes less than this one.
"""

import jax
import jax.numpy as jnp
from jax import lax

from bench.grids import workloads
from bench.shared import programs

GATES = {"SimpleCell": 1, "GRUCell": 3, "LSTMCell": 4, "OptimizedLSTMCell": 4}


def program(size: workloads.Size, seed: int) -> programs.Program:
    """The loop and the products for a cell of this size, on random numbers."""
    gates, steps = GATES[size.cell], (size.length, size.batch)
    keys = jax.random.split(jax.random.key(seed), 5)
    shapes = {
        "states": (*steps, size.hidden),
        "inputs": (*steps, size.hidden),
        "direct": (*steps, size.hidden),
        "slopes": (*steps, gates, size.hidden),
        "weights": (size.hidden, gates, size.hidden),
    }
    data = {
        name: jax.random.normal(key, shape) / size.hidden**0.5
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    return programs.build(gradient, data)


def gradient(data: dict[str, jax.Array]) -> list[jax.Array]:
    """dW_h and dW_x, (H, gates H), and db, (gates H,)."""
    weights, width = data["weights"], data["weights"].shape[0]
    matrix = weights.reshape(width, -1).T

    def step(state, t):
        direct, slopes = t
        shown = state + direct
        joint = (slopes * shown[:, None]).reshape(shown.shape[0], -1)
        return joint @ matrix, shown

    start = jnp.zeros_like(data["direct"][0])
    _, shown = lax.scan(step, start, (data["direct"], data["slopes"]), reverse=True)
    rows = lambda a: a.reshape(-1, a[0, 0].size)  # noqa: E731
    joint = rows(data["slopes"] * shown[:, :, None])
    return [rows(data[name]).T @ joint for name in ("states", "inputs")] + [joint.sum(0)]
