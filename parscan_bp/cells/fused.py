"""Cells whose whole recurrence is one kernel, and so is its adjoint.

The products with the inputs are made beforehand, those that give the cotangents of the inputs and
their weights afterwards, each as one batched product over all steps. The kernel is what is left:
the recurrent products and the gates, and backward the cotangents of the recurrent weights and of
the biases, where they fit on chip; else they are made afterwards, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.cells.gated import Gated
from parscan_bp.cells.stated import check_for_kernels
from parscan_bp.kernels.rule import Arrays, Rule
from parscan_bp.operators.arithmetic import accumulation_dtype
from parscan_bp.types import Array, PyTree

Params = Mapping[str, Array]
RunRule = Callable[[Rule, Array, Array, Array], tuple[Array, Any]]
"""``(rule, v, weights, first) -> (out, sums)``, as `parscan_bp.kernels.fused_recurrence`."""


@dataclasses.dataclass(frozen=True)
class FusedCell:
    """A cell in the form that the kernels take. Carries are lists of leaves (T, *batch, H).

    Attributes:
      cell: the cell.
    """

    cell: Gated

    def check(self, leaf: Any) -> None:
        """Raises unless its functions are what a kernel can do, see `Gated.check`.

        Args:
          leaf: of the carry of a step, or its type.

        Raises:
          NotImplementedError: if they do not treat all units alike.
        """
        self.cell.check(leaf)
        check_for_kernels(self.cell)

    def forward(self, run: RunRule, params: Params, carry: Arrays, xs: Array) -> list[Array]:
        """The carry after every step.

        Args:
          run: what runs a rule over all steps.
          params: the cell's parameters.
          carry: leaves (*batch, H) of the carry that enters the first step.
          xs: (T, *batch, inputs).
        """
        beside_x, beside_h = self._biases(params)
        x = _product(xs, params["wi"]) + jnp.concatenate(beside_x)
        length, size = xs.shape[0], carry[0].shape[-1]
        v = x.reshape(length, -1, len(beside_x), size)
        start = [*carry, *self.cell.of_past(carry), *beside_h]
        first = _stack([jnp.broadcast_to(a, carry[0].shape) for a in start], 0)
        out, _ = run(self.forward_rule, v, _by_gate(params["wh"]).swapaxes(-1, -2)[None], first)
        return [out[:, :, k].reshape(length, *c.shape).astype(c.dtype) for k, c in enumerate(carry)]

    def backward(
        self,
        run: RunRule,
        params: Params,
        init: Arrays,
        before: Arrays,
        xs: Array,
        after: Arrays,
        cts: Arrays | None,
        last: Arrays,
    ) -> tuple[PyTree, list[Array], Array]:
        """Cotangents of the parameters, summed, of the new carries and of the inputs.

        Args:
          run: what runs a rule over all steps, in the order opposite to `forward`.
          params: the cell's parameters.
          init: the carry that enters the first step.
          before: the carry that enters each step.
          xs: the inputs.
          after: the carry that leaves each step.
          cts: what the cotangent of ``after`` has from everything but the next step; or ``None``
            where that is zero but for the last step.
          last: what it is there, read where ``cts`` is ``None``.
        """
        cell, shape = self.cell, after[0].shape
        rule = self.backward_rule if cts is not None else self.backward_rule_of_last
        gates = self._gates(params, before, xs, after)
        v = _stack([*gates, *cell.of_past(before), *(() if cts is None else cts)], 1)
        start = [*(last if cts is None else ()), init[0]]
        none = [jnp.zeros_like(init[0])] * (rule.starts - len(start))
        first = _stack([*none, *start], 0)
        out, sums = run(rule, v, _by_gate(params["wh"])[:, None], first)
        parts = [out[:, :, k].reshape(shape) for k in range(rule.outputs)]
        n, end = cell.counts[1], cell.counts[1] + cell.input_parts
        u = jnp.concatenate(parts[:n], axis=-1), parts[n:end]
        with jax.default_matmul_precision("highest"):  # as the sums of the kernel are
            if sums is None:
                grads, dx = cell.pull_params(params, cell.as_carry(before), xs, u)
            else:
                products, vectors = sums
                wh = products.swapaxes(0, 1).reshape(params["wh"].shape)
                beside_h, others = vectors[:n].ravel(), [*vectors[n:end]]
                grads, dx = cell.pull_inputs(params, xs, u, wh, beside_h, others)
        return grads, parts[-len(after) :], dx

    @property
    def forward_rule(self) -> Rule:
        """v = x W_i + b, out = the carry, state = what acts past the weights, biases beside h."""
        cell = self.cell
        return Rule(
            f"{type(cell).__name__}Forward",
            self._forward,
            operands=1,
            products=cell.counts[1],
            inputs=cell.counts[0],
            outputs=cell.states,
            states=len(cell.past) + cell.state_parts,
        )

    @property
    def backward_rule(self) -> Rule:
        """v = [gates, past, g_t], out = [u, lambda], state = what reaches `past` past the weights.

        Of u those first that are multiplied by weights.
        """
        cell = self.cell
        count = cell.counts[1] + cell.input_parts
        gates = jax.eval_shape(cell.activate, [jax.ShapeDtypeStruct((), jnp.float32)] * count)
        return Rule(
            f"{type(cell).__name__}Backward",
            self._backward,
            operands=cell.counts[1],
            products=1,
            inputs=len(gates) + len(cell.past) + cell.states,
            outputs=count + cell.states,
            states=len(cell.past),
            sums=count,
        )

    @property
    def backward_rule_of_last(self) -> Rule:
        """Of cotangents of the last carry alone: no g_t arrives, the state begins with theirs."""
        rule, states = self.backward_rule, self.cell.states
        return dataclasses.replace(
            rule,
            name=f"{rule.name}OfLast",
            step=self._backward_of_last,
            inputs=rule.inputs - states,
            states=rule.states + states,
        )

    def _forward(self, v: Arrays, products: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        cell, count = self.cell, len(self.cell.past)
        past, biases = state[:count], state[count:]
        alone = [p + b for p, b in zip(products[cell.parts :], biases, strict=True)]
        parts = cell.added(v, [*products[: cell.parts], *alone])
        new = cell.update(cell.activate(parts), past)
        return new, [*cell.of_past(new), *biases]

    def _backward(self, v: Arrays, products: Arrays, state: Arrays) -> tuple[Arrays, Arrays, Array]:
        cell, count = self.cell, len(v) - self.cell.states
        gates, past = v[: count - len(cell.past)], v[count - len(cell.past) : count]
        cts = dict(enumerate(v[count:]))
        cts[0] = cts[0] + products[0]
        for k, part in zip(cell.past, state, strict=True):
            cts[k] = cts[k] + part
        lambdas = list(cts.values())
        new = cell.update(gates, past)
        u, direct = cell.pull(gates, past, new, lambdas)
        others = u[cell.parts : cell.counts[0]]
        return [*cell.of_state(u), *others, *lambdas], direct, new[0]

    def _backward_of_last(
        self, v: Arrays, products: Arrays, state: Arrays
    ) -> tuple[Arrays, Arrays, Array]:
        count = len(self.cell.past)
        cts = state[count:]
        out, direct, h = self._backward([*v, *cts], products, state[:count])
        return out, [*direct, *map(jnp.zeros_like, cts)], h

    def _biases(self, params: Params) -> tuple[list[Array], list[Array]]:
        """What is added to the products with the inputs, and to those with h alone."""
        beside = []
        for name, count in zip(self.cell.biases, self.cell.counts, strict=True):
            none = jnp.zeros_like(params["wh"], shape=count * params["wh"].shape[0])
            beside.append(jnp.split(none if name is None else params[name], count))
        (of_input, of_state), n = beside, self.cell.parts
        both = [a + b for a, b in zip(of_input[:n], of_state[:n], strict=True)]
        return [*both, *of_input[n:]], of_state[n:]

    def _gates(self, params: Params, before: Arrays, xs: Array, after: Arrays) -> list[Array]:
        """In at least float32, also the products: a GPU's default would round to tf32."""
        wide = lambda v: v.astype(accumulation_dtype(v.dtype))  # noqa: E731
        params, before, xs, after = jax.tree.map(wide, (dict(params), before, xs, after))
        as_carry = self.cell.as_carry
        with jax.default_matmul_precision("highest"):
            return self.cell.gates(params, as_carry(before), xs, as_carry(after))


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
