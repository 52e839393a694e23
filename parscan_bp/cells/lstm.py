"""The long short-term memory cell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import (
    Cell,
    affine_cotangents,
    in_dtypes_of,
    normal,
    through_sigmoid,
    through_tanh,
)
from parscan_bp.operators import Factored


@dataclasses.dataclass(frozen=True)
class LSTM(Cell):
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

    def init(self, key, inputs, hidden, dtype=float):
        ki, kh = jax.random.split(key)
        return {
            "wi": normal(ki, inputs, 4 * hidden, dtype),
            "wh": normal(kh, hidden, 4 * hidden, dtype),
            "b": jnp.zeros(4 * hidden, dtype),
        }

    def initial_carry(self, batch_shape, hidden, dtype=float):
        zero = jnp.zeros((*batch_shape, hidden), dtype)
        return zero, zero

    def _gates(self, params, h, x, *, apart: bool):
        if apart:
            each = (jnp.split(params[name], 4, axis=-1) for name in ("wi", "wh", "b"))
            i, f, g, o = (x @ wi + h @ wh + b for wi, wh, b in zip(*each, strict=True))
            return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        a = x @ params["wi"] + h @ params["wh"] + params["b"]
        # One sigmoid for all four: XLA on CPU vectorises it over what is contiguous.
        i, f, _, o = jnp.split(jax.nn.sigmoid(a), 4, axis=-1)
        return i, f, jnp.tanh(jnp.split(a, 4, axis=-1)[2]), o

    def __call__(self, params, carry, x):
        h, c = carry
        # XLA on CPU makes one kernel of a step that is so small, but not of gates side by side.
        i, f, g, o = self._gates(params, h, x, apart=h.size <= 2 and h.shape[-1] == 1)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), h

    def _gates_again(self, params, h, x):
        # XLA on CPU vectorises along the last axis, or over steps where that has one number.
        return self._gates(params, h, x, apart=h.shape[-1] == 1)

    def jacobian(self, params, carry, x, new_carry):
        i, f, g, o = self._gates_again(params, carry[0], x)
        t = jnp.tanh(new_carry[1])
        s, zero = o * (1 - t * t), jnp.zeros_like(f)
        by_e = g * i * (1 - i), carry[1] * f * (1 - f), i * (1 - g * g)
        rows = [jnp.stack([s * d, d], axis=-2) for d in by_e]
        rows.append(jnp.stack([t * o * (1 - o), zero], axis=-2))
        direct = jnp.stack(
            [jnp.stack([zero, zero], axis=-2), jnp.stack([s * f, f], axis=-2)], axis=-3
        )
        return Factored(params["wh"], jnp.stack(rows, axis=-3), direct)

    def pull_carry(self, params, carry, x, new_carry, cts, gates=None):
        """See `Cell`; ``gates`` are i, f, g and o, if they need not be made again."""
        i, f, g, o = self._gates_again(params, carry[0], x) if gates is None else gates
        (lambda_h, lambda_c), t = cts, jnp.tanh(new_carry[1])
        e = lambda_c + through_tanh(lambda_h * o, t)
        parts = [
            through_sigmoid(e * g, i),
            through_sigmoid(e * carry[1], f),
            through_tanh(e * i, g),
            through_sigmoid(lambda_h * t, o),
        ]
        u = jnp.concatenate(parts, axis=-1)
        return u, (jnp.inner(u, params["wh"]), f * e)

    def pull_params(self, params, carry, x, u):
        dwi, dwh, db = affine_cotangents([x, carry[0]], u)
        dx = jnp.inner(u, params["wi"]).astype(x.dtype)
        return in_dtypes_of(params, {"wi": dwi, "wh": dwh, "b": db}), dx
