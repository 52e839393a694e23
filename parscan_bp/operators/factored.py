"""The transposed Jacobian of a gated recurrent cell, kept as the factors it is made of."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from parscan_bp.operators.arithmetic import accumulation_dtype, apply_matrix, multiply_sum
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Factored(Operator):
    """A v = E_0 W u + D v, with u_gh = sum_s gates_gsh v_sh and (D v)_sh = sum_r direct_srh v_rh.

    The state vector of size S H is S groups of H units. u, of G groups, are the cotangents of the
    cell's pre-activations; W, shared by all steps, takes them to the previous hidden state, which
    is state group 0 (E_0 puts it there); D is what reaches the previous state past the weights.

    | cell  | S        | G | direct                            |
    |-------|----------|---|-----------------------------------|
    | Elman | 1        | 1 | none: A = W diag(d)               |
    | GRU   | 1        | 3 | z                                 |
    | LSTM  | 2 (h, c) | 4 | row c only: the forget gate times what reaches c |

    A matvec takes 2 G H^2 operations and a stack of T steps G S H numbers per step beside one W;
    as dense matrices it would take 2 (S H)^2 and (S H)^2 per step.

    Args:
      weight: (..., H, G H), the transposed recurrent weights, gate by gate side by side.
      gates: (..., G, S, H).
      direct: (..., S, S, H) as (to group, from group, unit), or ``None`` for D = 0.
      transposed: whether the operator is the transpose of the above.

    Raises:
      ValueError: if an array has too few axes; if the sizes do not fit, when the `shape` is first
        needed.

    Source: BPPSA appendix E, eq. 11, for the GRU: J1, J4, J8 are the parts of W, the products of
    j2..j10 the gates, J11 the direct part.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Factored
      >>> weight, d = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> Factored.from_diagonal(weight, d).matvec(jnp.ones(2)).tolist()
      [[1.0, 3.0], [2.0, 4.0]]
    """

    weight: Array
    gates: Array
    direct: Array | None = None
    transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    core_ndims: ClassVar = {"weight": 2, "gates": 3, "direct": 3}
    multilinear: ClassVar = True

    @classmethod
    def from_diagonal(cls, weight: Array, d: Array) -> Factored:
        """W diag(d) with W (..., n, n) and d (..., n): S = G = 1, nothing direct."""
        return cls(weight, jnp.asarray(d)[..., None, None, :])

    @property
    def shape(self):
        states, _, units = self._sizes()
        return (states * units,) * 2

    def _sizes(self) -> tuple[int, int, int]:
        """(S, G, H)."""
        self.leaves()
        count, states, units = self.gates.shape[-3:]
        wanted = {"weight": (units, count * units), "direct": (states, states, units)}
        for name, want in wanted.items():
            leaf = getattr(self, name)
            if leaf is not None and leaf.shape[-len(want) :] != want:
                raise ValueError(
                    f"{name}: got shape {tuple(leaf.shape)}; gates of shape "
                    f"{tuple(self.gates.shape)} = (..., G, S, H) want {name} to end in {want}"
                )
        return states, count, units

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.dtype, v)
        states, count, units = self._sizes()
        weight = jnp.swapaxes(self.weight, -1, -2) if self.transposed else self.weight
        if states == count == 1 and self.direct is None:
            d = self.gates[..., 0, 0, :]
            if self.transposed:
                return (d * apply_matrix(weight, v)).astype(dtype)
            return apply_matrix(weight, d * v).astype(dtype)
        groups = jnp.reshape(v, (*v.shape[:-1], states, units))
        out = (self._pull if self.transposed else self._push)(weight, groups, dtype)
        return out.reshape(*out.shape[:-2], states * units).astype(dtype)

    def _push(self, weight, groups, dtype):
        """Accumulated A v, from and to (..., S, H)."""
        states, count, units = self._sizes()
        u = multiply_sum(self.gates, groups[..., None, :, :], axis=-2)
        u = u.reshape(*u.shape[:-2], count * units).astype(dtype)
        hidden = _in_group_0(apply_matrix(weight, u)[..., None, :], states)
        if self.direct is None:
            return hidden
        return hidden + multiply_sum(self.direct, groups[..., None, :, :], axis=-2)

    def _pull(self, weight, groups, dtype):
        """Accumulated A^T v, from and to (..., S, H)."""
        _, count, units = self._sizes()
        u = apply_matrix(weight, groups[..., 0, :])
        u = u.reshape(*u.shape[:-1], count, 1, units)
        out = multiply_sum(self.gates, u, axis=-3)
        if self.direct is None:
            return out
        return out + multiply_sum(self.direct, groups[..., :, None, :], axis=-3)

    def transpose(self):
        return dataclasses.replace(self, transposed=not self.transposed)

    def as_dense(self):
        states, count, units = self._sizes()
        n, dtype = states * units, self.dtype
        # W as (i, g, 1, h) times the gates as (1, g, s, h): (i, s, h) after the sum over g.
        weight = self.weight.reshape(*self.weight.shape[:-1], count, 1, units)
        hidden = multiply_sum(weight, self.gates[..., None, :, :, :], axis=-3)
        dense = _in_group_0(hidden[..., None, :, :, :], states, trailing=3)
        if self.direct is not None:
            # direct as (s, 1, r, h) on the unit matrix over (i, 1, h).
            eye = jnp.eye(units, dtype=bool)[:, None, :]
            part = jnp.where(eye, jnp.asarray(self.direct)[..., :, None, :, :], 0)
            dense = dense + part.astype(accumulation_dtype(dtype))
        dense = dense.reshape(*dense.shape[:-4], n, n).astype(dtype)
        return jnp.swapaxes(dense, -1, -2) if self.transposed else dense

    def cost(self) -> Cost:
        states, count, units = self._sizes()
        flops = 2 * count * units * units + (2 * states - 1) * count * units
        if self.direct is not None:
            flops += 2 * states * states * units
        return self.cost_of(flops)


def _in_group_0(hidden: Array, states: int, trailing: int = 1) -> Array:
    """(..., 1, and trailing axes) as state group 0 of S; the other groups are zero."""
    if states == 1:
        return hidden
    widths = [(0, 0)] * (hidden.ndim - trailing - 1) + [(0, states - 1)] + [(0, 0)] * trailing
    return jnp.pad(hidden, widths)
