"""Cells whose whole recurrence is one kernel, and so is its adjoint.

The products with the inputs are made beforehand, those that give the weights' cotangents
afterwards, each as one batched product over all steps. The kernel is what is left: the
recurrent products and the gates.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from parscan_bp.cells.base import Cell, affine_pullback, sum_leading
from parscan_bp.cells.elman import Elman
from parscan_bp.cells.gru import GRU
from parscan_bp.cells.lstm import LSTM
from parscan_bp.kernels import gates
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.types import Array, PyTree

Arrays = Sequence[Array]
Params = Mapping[str, Array]
Run = Callable[[gates.Rule, Array, Array, Array], Array]
"""``(rule, v, weights, first) -> out``, as `parscan_bp.kernels.fused_recurrence`."""


@dataclasses.dataclass(frozen=True)
class FusedCell(abc.ABC):
    """A cell in the form that the kernels take. Carries are lists of leaves (T, *batch, H).

    Attributes:
      cell: the cell.
      forward_rule, backward_rule: its gates.
    """

    cell: Any
    forward_rule: gates.Rule
    backward_rule: gates.Rule

    def forward(self, run: Run, params: Params, carry: Arrays, xs: Array) -> list[Array]:
        """The carry after every step.

        Args:
          run: what runs a rule over all steps.
          params: the cell's parameters.
          carry: leaves (*batch, H) of the carry that enters the first step.
          xs: (T, *batch, inputs).
        """
        x = _product(xs, params["wi"]) + self._bias(params)
        length, size = xs.shape[0], carry[0].shape[-1]
        v = x.reshape(length, -1, self.forward_rule.inputs, size)
        first = _stack([jnp.broadcast_to(a, carry[0].shape) for a in self._first(params, carry)], 0)
        out = run(self.forward_rule, v, _by_gate(params["wh"]).swapaxes(-1, -2)[None], first)
        return [out[:, :, k].reshape(length, *c.shape).astype(c.dtype) for k, c in enumerate(carry)]

    def backward(
        self, run: Run, params: Params, before: Arrays, xs: Array, after: Arrays, cts: Arrays
    ) -> tuple[PyTree, list[Array], Array]:
        """Cotangents of the parameters, summed, of the new carries and of the inputs.

        Args:
          run: what runs a rule over all steps, in the order opposite to `forward`.
          params: the cell's parameters.
          before: the carry that enters each step.
          xs: the inputs.
          after: the carry that leaves each step.
          cts: what the cotangent of ``after`` has from everything but the next step.
        """
        rule, shape = self.backward_rule, after[0].shape
        v = _stack([*self._saved(params, before, xs, after), *cts], 1)
        first = jnp.zeros((v.shape[1], rule.outputs + rule.states, shape[-1]), v.dtype)
        out = run(rule, v, _by_gate(params["wh"])[:, None], first)
        parts = [out[:, :, k].reshape(shape) for k in range(rule.outputs)]
        by_input, by_weights = self._by_product(parts)
        di, da = (jnp.concatenate(x, axis=-1) for x in (by_input, by_weights))
        dwi, dx = affine_pullback(xs, params["wi"], di)
        dwh, _ = affine_pullback(before[0], params["wh"], da)
        return {"wi": dwi, "wh": dwh, **self._biases(di, da)}, parts[-len(after) :], dx

    @abc.abstractmethod
    def _bias(self, params: Params) -> Array:
        """What is added to the products with the inputs."""

    @abc.abstractmethod
    def _first(self, params: Params, carry: Arrays) -> list[Array]:
        """Outputs and states of the forward rule before the first step."""

    @abc.abstractmethod
    def _saved(self, params: Params, before: Arrays, xs: Array, after: Arrays) -> list[Array]:
        """Inputs of the backward rule but for the cotangents."""

    def _by_product(self, parts: list[Array]) -> tuple[list[Array], list[Array]]:
        """Cotangents, gate by gate, of the products with the inputs and with the weights."""
        da = parts[: self.backward_rule.operands]
        return da, da

    def _biases(self, di: Array, da: Array) -> dict[str, Array]:
        """Cotangents of the biases."""
        return {"b": sum_leading(di)}


class FusedElman(FusedCell):
    """See `parscan_bp.cells.Elman`."""

    def _bias(self, params):
        return params["b"]

    def _first(self, params, carry):
        return [carry[0]]

    def _saved(self, params, before, xs, after):
        return [after[0]]


class FusedGRU(FusedCell):
    """See `parscan_bp.cells.GRU`."""

    def _recurrent_bias(self, params):
        """b_h of the gates r, z, n."""
        if self.cell.recurrent_bias:
            return jnp.split(params["bh"], 3)
        return [jnp.zeros_like(params["wh"], shape=params["wh"].shape[0])] * 3

    def _bias(self, params):
        r, z, n = self._recurrent_bias(params)
        return params["bi"] + jnp.concatenate([r, z, jnp.zeros_like(n)])

    def _first(self, params, carry):
        return [carry[0], carry[0], self._recurrent_bias(params)[2]]

    def _saved(self, params, before, xs, after):
        i = _product(xs, params["wi"]) + self._bias(params)
        h = _product(before[0], params["wh"])
        (ir, iz, n), (hr, hz, m) = jnp.split(i, 3, axis=-1), jnp.split(h, 3, axis=-1)
        return [ir + hr, iz + hz, n, m + self._recurrent_bias(params)[2], before[0]]

    def _by_product(self, parts):
        dr, dz, dm, dn, _ = parts
        return [dr, dz, dn], [dr, dz, dm]

    def _biases(self, di, da):
        grads = {"bi": sum_leading(di)}
        return grads | ({"bh": sum_leading(da)} if self.cell.recurrent_bias else {})


class FusedLSTM(FusedCell):
    """See `parscan_bp.cells.LSTM`."""

    def _bias(self, params):
        return params["b"]

    def _first(self, params, carry):
        return [*carry, carry[1]]

    def _saved(self, params, before, xs, after):
        a = _product(xs, params["wi"]) + self._bias(params) + _product(before[0], params["wh"])
        return [*jnp.split(a, 4, axis=-1), before[1]]


def fused(cell: Cell) -> FusedCell | None:
    """The cell in the form that the kernels take, ``None`` if there is none."""
    if type(cell) is Elman:
        rules = gates.ElmanForward(cell.activation), gates.ElmanBackward(cell.activation)
        return FusedElman(cell, *rules)
    if type(cell) is GRU:
        return FusedGRU(cell, gates.GRUForward(), gates.GRUBackward())
    if type(cell) is LSTM:
        return FusedLSTM(cell, gates.LSTMForward(), gates.LSTMBackward())
    return None


def _product(x: Array, w: Array) -> Array:
    """x @ w in at least float32: a GPU's default precision would round to tf32."""
    dtype = accumulation_dtype(x.dtype)
    return jnp.matmul(x, w, precision=lax.Precision.HIGHEST, preferred_element_type=dtype)


def _by_gate(w: Array) -> Array:
    """(H, G H) as (G, H, H)."""
    return w.reshape(w.shape[0], -1, w.shape[0]).swapaxes(0, 1)


def _stack(vectors: Sequence[Array], steps: int) -> Array:
    """Vectors (*steps, *batch, H) as (*steps, samples, vectors, H) in at least float32."""
    x = jnp.stack(vectors, axis=-2)
    samples = math.prod(x.shape[steps:-2])
    return x.reshape(*x.shape[:steps], samples, *x.shape[-2:]).astype(accumulation_dtype(x.dtype))
