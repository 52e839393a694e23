"""The Elman cell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import (
    Cell,
    affine_cotangents,
    in_dtypes_of,
    normal,
    through_tanh,
)
from parscan_bp.operators import Factored


@dataclasses.dataclass(frozen=True)
class Elman(Cell):
    """h_t = phi(x_t W_i + h_{t-1} W_h + b), the vanilla RNN of BPPSA eq. 9.

    With a_t the argument of phi, dh_t/dh_{t-1} = diag(phi'(a_t)) W_h^T, so

        A_t = W_h diag(phi'(a_t)),  phi' = 1 - h_t^2 (tanh),  [h_t > 0] (relu),

    which needs neither a_t nor a product: it is kept as W_h and a vector. The paper's two
    biases are one, since only their sum acts.

    Args:
      activation: "tanh" or "relu".

    Example:
      >>> import functools, jax, jax.numpy as jnp, parscan_bp as pb
      >>> cell = pb.cells.Elman()
      >>> params = cell.init(jax.random.key(0), inputs=1, hidden=20)
      >>> h0 = cell.initial_carry((16,), 20)
      >>> h, ys = pb.scan(functools.partial(cell, params), h0, jnp.ones((100, 16, 1)))
      >>> ys.shape
      (100, 16, 20)
    """

    is_value: ClassVar[bool] = True

    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self):
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation: got {self.activation!r}; 'tanh' or 'relu' is wanted")

    def init(self, key, inputs, hidden, dtype=float):
        ki, kh = jax.random.split(key)
        return {
            "wi": normal(ki, inputs, hidden, dtype),
            "wh": normal(kh, hidden, hidden, dtype),
            "b": jnp.zeros(hidden, dtype),
        }

    def initial_carry(self, batch_shape, hidden, dtype=float):
        return jnp.zeros((*batch_shape, hidden), dtype)

    def __call__(self, params, carry, x):
        a = x @ params["wi"] + carry @ params["wh"] + params["b"]
        h = jnp.tanh(a) if self.activation == "tanh" else jax.nn.relu(a)
        return h, h

    def _slope(self, h):
        return 1 - h * h if self.activation == "tanh" else (h > 0).astype(h.dtype)

    def jacobian(self, params, carry, x, new_carry):
        return Factored.from_diagonal(params["wh"], self._slope(new_carry))

    def pull_carry(self, params, carry, x, new_carry, cts):
        if self.activation == "tanh":
            u = through_tanh(cts, new_carry)
        else:
            u = jnp.where(new_carry > 0, cts, jnp.zeros_like(cts))
        return u, jnp.inner(u, params["wh"])

    def pull_params(self, params, carry, x, u):
        dwi, dwh, db = affine_cotangents([x, carry], u)
        dx = jnp.inner(u, params["wi"]).astype(x.dtype)
        return in_dtypes_of(params, {"wi": dwi, "wh": dwh, "b": db}), dx
