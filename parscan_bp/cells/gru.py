"""The gated recurrent unit."""

from __future__ import annotations

import dataclasses
import math
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
)
from parscan_bp.operators import Factored
from parscan_bp.types import Array

REPEATED = (8, 48)
"""Rows and features from which XLA on CPU multiplies faster by cotangents that are written once for
each gate than by such as are broadcast over the gates."""


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

    def _slopes(self, params, h, x, gates=None):
        """d_r, d_z and d_n r of the docstring, with d_n and z."""
        r, z, n, m = self._gates(params, h, x) if gates is None else gates
        dn = (1 - z) * (1 - n * n)
        return (dn * m * r * (1 - r), (h - n) * z * (1 - z), dn * r), dn, z

    def jacobian(self, params, carry, x, new_carry):
        slopes, _, z = self._slopes(params, carry, x)
        gates = jnp.stack(slopes, axis=-2)[..., None, :]
        return Factored(params["wh"], gates, z[..., None, None, :])

    def pull_carry(self, params, carry, x, new_carry, cts, gates=None):
        """See `Cell`; ``gates`` are r, z, n and m, if they need not be made again."""
        slopes, dn, z = self._slopes(params, carry, x, gates)
        # Side by side before the cotangents come: XLA copies each part of every concatenation.
        if math.prod(z.shape[:-1]) >= REPEATED[0] and z.shape[-1] >= REPEATED[1]:
            u = jnp.concatenate(slopes, axis=-1) * jnp.concatenate([cts, cts, cts], axis=-1)
        else:
            u = jnp.stack(slopes, axis=-2) * cts[..., None, :]
        direct = z * cts
        return (u, cts * dn), jnp.inner(_flat(u, direct), params["wh"]) + direct

    def pull_params(self, params, carry, x, u):
        u, n = u
        lead = x.shape[:-1]
        # Once for all steps: what a step stores side by side is not vectorised.
        carry, x, u, n = as_rows(carry, x, _flat(u, n), n)
        dwh, dbh = affine_cotangents([carry], u)
        dbi = jnp.concatenate([dbh[: -n.shape[-1]], sum_leading(n)])
        # The candidate's own n in the place of that of m.
        i = jnp.concatenate([u[..., : -n.shape[-1]], n], axis=-1)
        dwi, dx = affine_pullback(x, params["wi"], i)
        cotangents = {"wi": dwi, "wh": dwh, "bi": dbi, "bh": dbh}
        return in_dtypes_of(params, cotangents), dx.reshape(*lead, dx.shape[-1])


def _flat(u: Array, like: Array) -> Array:
    """The three gates of every unit, one after the other in the last axis."""
    return u.reshape(*like.shape[:-1], 3 * like.shape[-1])
