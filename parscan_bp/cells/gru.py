"""The gated recurrent unit."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import through_sigmoid, through_tanh
from parscan_bp.cells.gated import Gated


@dataclasses.dataclass(frozen=True)
class GRU(Gated):
    """The GRU of BPPSA eq. 10, gates in the order r, z, n.

        r = sigma(x W_ir + b_ir + h W_hr + b_hr)
        z = sigma(x W_iz + b_iz + h W_hz + b_hz)
        m = h W_hn + b_hn,   n = tanh(x W_in + b_in + r m)
        h_t = (1 - z) n + z h

    Its transposed Jacobian (appendix E, eq. 11, in factors that are kept apart) is

        A_t = [W_hr W_hz W_hn] [diag(d_r); diag(d_z); diag(d_n r)] + diag(z)
        d_n = (1 - z)(1 - n^2),   d_r = d_n m r (1 - r),   d_z = (h - n) z (1 - z).

    Args:
      recurrent_bias: whether b_hr, b_hz and b_hn exist (as in cuDNN and PyTorch). Without
        them the only biases are those beside the input (as in the original GRU).

    Example:
      >>> import functools, jax, jax.numpy as jnp, parscan_bp as pb
      >>> cell = pb.cells.GRU()
      >>> params = cell.init(jax.random.key(0), inputs=3, hidden=8)
      >>> h, ys = pb.scan(functools.partial(cell, params), jnp.zeros(8), jnp.ones((10, 3)))
      >>> ys.shape
      (10, 8)
    """

    is_value: ClassVar[bool] = True
    # Pre-activations of r and of z; what of that of n is beside r m; and m.
    parts: ClassVar = 2
    input_parts: ClassVar = 1
    state_parts: ClassVar = 1

    recurrent_bias: bool = True

    @property
    def biases(self):
        return "bi", "bh" if self.recurrent_bias else None

    def activate(self, a):
        r, z = jax.nn.sigmoid(a[0]), jax.nn.sigmoid(a[1])
        return [r, z, jnp.tanh(a[2] + r * a[3]), a[3]]

    def update(self, gates, past):
        (_, z, n, _), (h,) = gates, past
        return [(1 - z) * n + z * h]

    def pull(self, gates, past, new, cts):
        (r, z, n, m), (h,), (ct,) = gates, past, cts
        un = through_tanh(ct * (1 - z), n)
        uz = through_sigmoid(ct * h - ct * n, z)
        return [through_sigmoid(un * m, r), uz, un, un * r], [z * ct]
