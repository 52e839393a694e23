"""Cells whose Jacobian is diagonal: minGRU and the linear recurrent unit."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.cells.base import Cell, in_dtypes_of, normal, sum_leading, through_sigmoid
from parscan_bp.cells.weight_cotangent import weight_cotangent
from parscan_bp.operators import Diagonal


@dataclasses.dataclass(frozen=True)
class MinGRU(Cell):
    """h_t = (1 - z) h_{t-1} + z n,  z = sigma(x W_z + b_z),  n = x W_n + b_n.

    The gates do not see the carry, so A_t = diag(1 - z_t). Parameters are joined as
    ``w = [W_z W_n]`` and ``b = [b_z b_n]``.

    Source: Feng et al., "Were RNNs all we needed?", 2024, section 3.1.

    Example:
      >>> import functools, jax, jax.numpy as jnp, parscan_bp as pb
      >>> cell = pb.cells.MinGRU()
      >>> params = cell.init(jax.random.key(0), inputs=3, hidden=8)
      >>> _, ys = pb.scan(functools.partial(cell, params), jnp.zeros(8), jnp.ones((10, 3)))
      >>> ys.shape
      (10, 8)
    """

    is_value: ClassVar[bool] = True

    def init(self, key, inputs, hidden, dtype=float):
        return {
            "w": normal(key, inputs, 2 * hidden, dtype),
            "b": jnp.zeros(2 * hidden, dtype),
        }

    def initial_carry(self, batch_shape, hidden, dtype=float):
        return jnp.zeros((*batch_shape, hidden), dtype)

    def gates(self, params, carry, x, new_carry=None):
        z, n = jnp.split(x @ params["w"] + params["b"], 2, axis=-1)
        return jax.nn.sigmoid(z), n

    def __call__(self, params, carry, x):
        z, n = self.gates(params, carry, x)
        h = (1 - z) * carry + z * n
        return h, h

    def jacobian(self, params, carry, x, new_carry):
        return Diagonal(1 - self.gates(params, carry, x)[0])

    def pull_carry(self, params, carry, gates, new_carry, cts):
        z, n = gates
        u = jnp.concatenate([through_sigmoid(cts * n - cts * carry, z), cts * z], axis=-1)
        return u, (1 - z) * cts

    def pull_params(self, params, carry, x, u):
        dx = jnp.inner(u, params["w"]).astype(x.dtype)
        return in_dtypes_of(params, {"w": weight_cotangent(x, u), "b": sum_leading(u)}), dx


@dataclasses.dataclass(frozen=True)
class LRU(Cell):
    """h_t = a h_{t-1} + gamma (x B),  complex and diagonal; the output is h_t.

    a = exp(-exp(nu) + i theta) lies inside the unit circle and gamma = sqrt(1 - |a|^2)
    keeps the variance. The step is holomorphic in h, so A_t = diag(a), complex, without
    conjugation. Read-outs such as Re(h C) are one product after the scan.

    Source: Orvieto et al., "Resurrecting recurrent neural networks for long sequences",
    ICML 2023, section 3.

    Example:
      >>> import functools, jax, jax.numpy as jnp, parscan_bp as pb
      >>> cell = pb.cells.LRU()
      >>> params = cell.init(jax.random.key(0), inputs=3, hidden=8)
      >>> h0 = cell.initial_carry((), 8)
      >>> _, ys = pb.scan(functools.partial(cell, params), h0, jnp.ones((10, 3)))
      >>> ys.shape, bool(jnp.iscomplexobj(ys))
      ((10, 8), True)
    """

    is_value: ClassVar[bool] = True

    def init(self, key, inputs, hidden, dtype=float):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        radius = jax.random.uniform(k1, (hidden,), dtype, 0.4, 0.99)
        return {
            "nu": jnp.log(-jnp.log(radius)),
            "theta": jax.random.uniform(k2, (hidden,), dtype, 0.0, jnp.pi),
            "b_re": normal(k3, inputs, hidden, dtype),
            "b_im": normal(k4, inputs, hidden, dtype),
        }

    def initial_carry(self, batch_shape, hidden, dtype=float):
        return jnp.zeros(
            (*batch_shape, hidden), jnp.result_type(jnp.zeros((), dtype), jnp.complex64)
        )

    def _pole(self, params):
        decay = jnp.exp(params["nu"])
        return jnp.exp(-decay) * jnp.exp(1j * params["theta"]), jnp.sqrt(1 - jnp.exp(-2 * decay))

    def __call__(self, params, carry, x):
        a, gamma = self._pole(params)
        h = a * carry + gamma * (x @ params["b_re"] + 1j * (x @ params["b_im"]))
        return h, h

    def jacobian(self, params, carry, x, new_carry):
        return Diagonal(jnp.broadcast_to(self._pole(params)[0], new_carry.shape))

    def pull_carry(self, params, carry, gates, new_carry, cts):
        return cts, self._pole(params)[0] * cts

    def pull_params(self, params, carry, x, u):
        return jax.vjp(lambda params, x: self(params, carry, x)[0], params, x)[1](u)
