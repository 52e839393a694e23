"""The elementwise half of a recurrent step, forward and backward, cell by cell.

A *gate rule* says what happens to the products with the recurrent weights. `recurrence` runs
it on chip and the reference in plain JAX; both call the functions below, on lists of arrays of
one shape.

    products = weights times the operands of the step before
    out, state = rule(v, products, state),   operands = out[:rule.operands]

Forward, the one operand is h and there is a product per gate; backward, there is an operand per
gate, the cotangent of its pre-activation, and their products add up to the cotangent of h.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from parscan_bp.types import Array

Arrays = Sequence[Array]


class Rule(abc.ABC):
    """One direction of a cell.

    Attributes:
      operands: outputs, the first ones, that are multiplied in the next step.
      products: sums of products that come back.
      inputs: vectors that arrive with each step.
      outputs: vectors that leave with each step.
      states: vectors that only the next step sees.
    """

    operands: ClassVar[int]
    products: ClassVar[int]
    inputs: ClassVar[int]
    outputs: ClassVar[int]
    states: ClassVar[int]

    @abc.abstractmethod
    def __call__(self, v: Arrays, products: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        """(out, state) of one step."""


@dataclasses.dataclass(frozen=True)
class ElmanForward(Rule):
    """v = [x W_i + b], out = [h]."""

    activation: Literal["tanh", "relu"]
    operands, products, inputs, outputs, states = 1, 1, 1, 1, 0

    def __call__(self, v, products, state):
        a = v[0] + products[0]
        return [jnp.tanh(a) if self.activation == "tanh" else jnp.maximum(a, 0.0)], []


@dataclasses.dataclass(frozen=True)
class ElmanBackward(Rule):
    """v = [h_t, g_t], out = [da, lambda]."""

    activation: Literal["tanh", "relu"]
    operands, products, inputs, outputs, states = 1, 1, 2, 2, 0

    def __call__(self, v, products, state):
        h, g = v
        ct = g + products[0]
        da = ct * (1 - h * h) if self.activation == "tanh" else jnp.where(h > 0, ct, 0.0)
        return [da, ct], []


@dataclasses.dataclass(frozen=True)
class GRUForward(Rule):
    """v = x W_i + b of the gates r, z, n (b_hr and b_hz in b), out = [h], state = [h, b_hn]."""

    operands, products, inputs, outputs, states = 1, 3, 3, 1, 2

    def __call__(self, v, products, state):
        h, bias = state
        r, z = jax.nn.sigmoid(v[0] + products[0]), jax.nn.sigmoid(v[1] + products[1])
        n = jnp.tanh(v[2] + r * (products[2] + bias))
        h = (1 - z) * n + z * h
        return [h], [h, bias]


@dataclasses.dataclass(frozen=True)
class GRUBackward(Rule):
    """v = [a_r, a_z, x W_in + b_in, m, h_{t-1}, g_t], out = [da_r, da_z, dm, da_n, lambda].

    The state is what reaches h_{t-1} past the weights, z lambda.
    """

    operands, products, inputs, outputs, states = 3, 1, 6, 5, 1

    def __call__(self, v, products, state):
        a_r, a_z, x_n, m, h, g = v
        ct = g + (products[0] + state[0])
        r, z = jax.nn.sigmoid(a_r), jax.nn.sigmoid(a_z)
        n = jnp.tanh(x_n + r * m)
        dn = ct * (1 - z) * (1 - n * n)
        dr, dz = dn * m * r * (1 - r), ct * (h - n) * z * (1 - z)
        return [dr, dz, dn * r, dn, ct], [z * ct]


@dataclasses.dataclass(frozen=True)
class LSTMForward(Rule):
    """v = x W_i + b of the gates i, f, g, o, out = [h, c], state = [c]."""

    operands, products, inputs, outputs, states = 1, 4, 4, 2, 1

    def __call__(self, v, products, state):
        a = [x + p for x, p in zip(v, products, strict=True)]
        i, f, o = (jax.nn.sigmoid(a[k]) for k in (0, 1, 3))
        c = f * state[0] + i * jnp.tanh(a[2])
        return [o * jnp.tanh(c), c], [c]


@dataclasses.dataclass(frozen=True)
class LSTMBackward(Rule):
    """v = [a_i, a_f, a_g, a_o, c_{t-1}, g^h_t, g^c_t], out = [da of the gates, lambda^h, lambda^c].

    The state is what reaches c_{t-1}, f e with e the cotangent of c_t.
    """

    operands, products, inputs, outputs, states = 4, 1, 7, 6, 1

    def __call__(self, v, products, state):
        i, f, o = (jax.nn.sigmoid(v[k]) for k in (0, 1, 3))
        g, c = jnp.tanh(v[2]), v[4]
        t = jnp.tanh(f * c + i * g)
        ct_h, ct_c = v[5] + products[0], v[6] + state[0]
        e = ct_c + ct_h * o * (1 - t * t)
        by_gate = [e * g * i * (1 - i), e * c * f * (1 - f), e * i * (1 - g * g)]
        return [*by_gate, ct_h * t * o * (1 - o), ct_h, ct_c], [f * e]
