"""The gated recurrent unit."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import (
    Cell,
    affine_cotangents,
    affine_pullback,
    as_rows,
    in_dtypes_of,
    normal,
    sum_leading,
    through_sigmoid,
    through_tanh,
)
from parscan_bp.operators import Factored


@dataclasses.dataclass(frozen=True)
class GRU(Cell):
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

    recurrent_bias: bool = True

    def init(self, key, inputs, hidden, dtype=float):
        ki, kh = jax.random.split(key)
        params = {
            "wi": normal(ki, inputs, 3 * hidden, dtype),
            "wh": normal(kh, hidden, 3 * hidden, dtype),
            "bi": jnp.zeros(3 * hidden, dtype),
        }
        return params | ({"bh": jnp.zeros(3 * hidden, dtype)} if self.recurrent_bias else {})

    def initial_carry(self, batch_shape, hidden, dtype=float):
        return jnp.zeros((*batch_shape, hidden), dtype)

    def _gates(self, params, h, x):
        i = x @ params["wi"] + params["bi"]
        hh = h @ params["wh"]
        if self.recurrent_bias:
            hh = hh + params["bh"]
        ir, iz, inn = jnp.split(i, 3, axis=-1)
        hr, hz, m = jnp.split(hh, 3, axis=-1)
        r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
        return r, z, jnp.tanh(inn + r * m), m

    def __call__(self, params, carry, x):
        _, z, n, _ = self._gates(params, carry, x)
        h = (1 - z) * n + z * carry
        return h, h

    def jacobian(self, params, carry, x, new_carry):
        r, z, n, m = self._gates(params, carry, x)
        dn = (1 - z) * (1 - n * n)
        slopes = dn * m * r * (1 - r), (carry - n) * z * (1 - z), dn * r
        gates = jnp.stack(slopes, axis=-2)[..., None, :]
        return Factored(params["wh"], gates, z[..., None, None, :])

    def pull_carry(self, params, carry, x, new_carry, cts, gates=None):
        """See `Cell`; ``gates`` are r, z, n and m, if they need not be made again."""
        r, z, n, m = self._gates(params, carry, x) if gates is None else gates
        un = through_tanh(cts * (1 - z), n)
        uz = through_sigmoid(cts * carry - cts * n, z)
        u = jnp.concatenate([through_sigmoid(un * m, r), uz, un * r], axis=-1)
        direct = z * cts
        return (u, un), jnp.inner(u, params["wh"]) + direct

    def pull_params(self, params, carry, x, u):
        u, n = u
        lead = x.shape[:-1]
        # Once for all steps: what a step stores side by side is not vectorised.
        carry, x, u, n = as_rows(carry, x, u, n)
        dwh, dbh = affine_cotangents([carry], u)
        dbi = jnp.concatenate([dbh[: -n.shape[-1]], sum_leading(n)])
        # The candidate's own n in the place of that of m.
        i = jnp.concatenate([u[..., : -n.shape[-1]], n], axis=-1)
        dwi, dx = affine_pullback(x, params["wi"], i)
        cotangents = {"wi": dwi, "wh": dwh, "bi": dbi, "bh": dbh}
        return in_dtypes_of(params, cotangents), dx.reshape(*lead, dx.shape[-1])
