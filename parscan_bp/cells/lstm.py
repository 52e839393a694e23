"""The long short-term memory cell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import through_sigmoid, through_tanh
from parscan_bp.cells.gated import Gated


@dataclasses.dataclass(frozen=True)
class LSTM(Gated):
    """The LSTM, carry (h, c), gates in the order i, f, g, o.

        [a_i a_f a_g a_o] = x W_i + h W_h + b
        c_t = sigma(a_f) c + sigma(a_i) tanh(a_g),   h_t = sigma(a_o) tanh(c_t)

    A cotangent (lambda_h, lambda_c) first reaches c_t, e = lambda_c + s lambda_h with
    s = o (1 - tanh(c_t)^2), and then the gates and the old carry:

        u_i = e g i(1-i),  u_f = e c f(1-f),  u_g = e i(1-g^2),
        u_o = lambda_h tanh(c_t) o(1-o),      A_t (lambda_h, lambda_c) = (W_h u, f e),

    so A_t is W_h times blocks of diagonals (4 gates by 2 states), and one more such block.

    Example:
      >>> import functools, jax, jax.numpy as jnp, parscan_bp as pb
      >>> cell = pb.cells.LSTM()
      >>> params = cell.init(jax.random.key(0), inputs=3, hidden=8)
      >>> carry = cell.initial_carry((2,), 8)
      >>> _, ys = pb.scan(functools.partial(cell, params), carry, jnp.ones((10, 2, 3)))
      >>> ys.shape
      (10, 2, 8)
    """

    is_value: ClassVar[bool] = True
    parts: ClassVar = 4
    states: ClassVar = 2
    past: ClassVar = (1,)

    def activated(self, params, h, x):
        if h.size <= 2 and h.shape[-1] == 1:
            # XLA on CPU makes one kernel of a step so small, but not of gates side by side.
            each = (jnp.split(params[name], 4, axis=-1) for name in ("wi", "wh", "b"))
            return self.activate([x @ wi + h @ wh + b for wi, wh, b in zip(*each, strict=True)])
        a = x @ params["wi"] + h @ params["wh"] + params["b"]
        # One sigmoid for all four: XLA on CPU vectorises it over what is contiguous.
        i, f, _, o = jnp.split(jax.nn.sigmoid(a), 4, axis=-1)
        return [i, f, jnp.tanh(jnp.split(a, 4, axis=-1)[2]), o]

    def activate(self, a):
        i, f, g, o = a
        return [jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)]

    def update(self, gates, past):
        (i, f, g, o), (c,) = gates, past
        c = f * c + i * g
        return [o * jnp.tanh(c), c]

    def pull(self, gates, past, new, cts):
        (i, f, g, o), (c,), (lambda_h, lambda_c), t = gates, past, cts, jnp.tanh(new[1])
        e = lambda_c + through_tanh(lambda_h * o, t)
        u = [
            through_sigmoid(e * g, i),
            through_sigmoid(e * c, f),
            through_tanh(e * i, g),
            through_sigmoid(lambda_h * t, o),
        ]
        return u, [f * e]
