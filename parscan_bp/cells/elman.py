"""The Elman cell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import through_tanh
from parscan_bp.cells.gated import Gated


@dataclasses.dataclass(frozen=True)
class Elman(Gated):
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
    parts: ClassVar = 1
    past: ClassVar = ()

    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self):
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation: got {self.activation!r}; 'tanh' or 'relu' is wanted")

    def activate(self, a):
        return [jnp.tanh(a[0]) if self.activation == "tanh" else jax.nn.relu(a[0])]

    def update(self, gates, past):
        return gates

    def gates(self, params, carry, x, new_carry):
        return [new_carry]

    def pull(self, gates, past, new, cts):
        if self.activation == "tanh":
            return [through_tanh(cts[0], new[0])], []
        return [jnp.where(new[0] > 0, cts[0], jnp.zeros_like(cts[0]))], []
