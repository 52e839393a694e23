"""The linearised scan as block bi-diagonal systems, forward and backward.

With carries c_t = f(p, c_{t-1}, x_t) and outputs y_t = h(p, c_{t-1}, x_t), tangents obey

    d_t = J_t d_{t-1} + f_p dp + f_x dx_t + r_t,     dy_t = h_c d_{t-1} + h_p dp + h_x dx_t

and the cotangents lambda_t of c_t and eta_t of y_t

    lambda_{t-1} = gamma_{t-1} + J_t^T lambda_t + h_c^T eta_t,
    dp = sum_t f_p^T lambda_t + h_p^T eta_t,   dx_t = f_x^T lambda_t + h_x^T eta_t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Active
from parscan_bp.linearise.residuals import Residuals
from parscan_bp.primitives.zeros import Zero, is_zero
from parscan_bp.solvers.collect import default_chunk
from parscan_bp.system import Block, System
from parscan_bp.trees import map_chunks, replace_at, stretch
from parscan_bp.types import Array, PyTree

BATCH_BYTES = (2**23, 2**23)
"""Bytes of a chunk without a loop inside that should stay in cache: only memory counts."""


def before(init, after, start, size: int, *, reverse: bool):
    """The carry that enters each step of a stretch, from the carries after every step."""
    if not after:
        return []
    n = len(after[0])
    at = jnp.minimum(start + size, n - 1) if reverse else jnp.maximum(start - 1, 0)
    at_end = start + size == n if reverse else start == 0

    def leaf(first, steps, outer):
        outer = _choose(at_end, jnp.expand_dims(first, 0), outer)
        if reverse:
            return lax.concatenate([lax.slice_in_dim(steps, 1, size), outer], 0)
        return lax.concatenate([outer, lax.slice_in_dim(steps, 0, size - 1)], 0)

    return jax.tree.map(leaf, init, stretch(after, start, size), stretch(after, at, 1))


def _choose(condition, yes, no):
    if isinstance(condition, bool):
        return yes if condition else no
    return lax.select(jnp.full_like(yes, condition, dtype=bool), yes, no)


@dataclasses.dataclass(frozen=True)
class Primal:
    """The scan that is differentiated: everything needed to linearise any stretch of it.

    Attributes:
      linearisation: how.
      consts, init, xs, length, reverse: the scan.
      after: the carry after every step.
      extra: `Linearisation.invariants`.
      kept: what else a forward pass kept of the steps; ``None`` where it kept nothing.
    """

    linearisation: Linearisation
    consts: Sequence[Array]
    init: Sequence[Array]
    xs: Sequence[Array]
    after: Sequence[Array]
    extra: PyTree
    kept: Residuals | None
    length: int
    reverse: bool

    def steps(self, start, size) -> Steps:
        x, after = stretch((list(self.xs), list(self.after)), start, size)
        carry = before(list(self.init), list(self.after), start, size, reverse=self.reverse)
        return Steps(self.consts, carry, x, after, self.extra)

    def outputs(self, steps: Steps, active: Active):
        """The float outputs of a stretch as a function of its active inputs."""
        body = self.linearisation.body

        def call(consts, carry, xs):
            def one(c, x, floats, active_x):
                c = replace_at(c, body.float_carry, floats)
                new, y = body(
                    active.insert_consts(steps.consts, consts), c, active.insert_x(x, active_x)
                )
                return [new[k] for k in body.float_carry], [y[j] for j in active.y]

            return body.mapped(one)(list(steps.carry), list(steps.x), carry, xs)

        floats = [steps.carry[k] for k in body.float_carry]
        return call, (active.of_consts(steps.consts), floats, active.of_x(steps.x))

    @property
    def in_turn(self) -> bool:
        """Whether a stretch of it is linearised step by step."""
        return self.linearisation.body.unbatchable is not None

    def map(self, f: Callable[[Steps, PyTree], PyTree], stacked: PyTree) -> PyTree:
        """``f(steps, part of stacked)`` for all steps, in batches that memory has room for.

        It acts on every step by itself.
        """
        n, body = self.length, self.linearisation.body
        steps = dataclasses.replace(self.steps(0, n), consts=[], extra=[])

        def some(values):
            steps, part = values
            return f(dataclasses.replace(steps, consts=self.consts, extra=self.extra), part)

        size = default_chunk(n, n * body.nbytes, BATCH_BYTES)
        return map_chunks(some, (steps, stacked), n, size)


@dataclasses.dataclass(frozen=True)
class Adjoint(System):
    """Reverse-mode: solves for lambda, collects parameter and input cotangents.

    Attributes:
      primal: the scan.
      active: what is differentiated.
      carry_cts: gamma, stacked, for each float carry leaf; or that it is zero.
      y_cts: eta, stacked, for each active y.
    """

    primal: Primal
    active: Active
    carry_cts: Sequence[Array | Zero]
    y_cts: Sequence[Array]

    @property
    def length(self):
        return self.primal.length

    @property
    def backward(self):
        return not self.primal.reverse

    @property
    def in_turn(self):
        return self.primal.in_turn

    def block(self, start, size):
        linear = self.primal.linearisation
        steps = self.primal.steps(start, size)
        entering = None
        if not all(map(is_zero, self.carry_cts)):
            cts = [_stretch_of(ct, start, size) for ct in self.carry_cts]
            entering = linear.pack(cts, cotangent=True)
        operator = self._operator(steps, start, size)
        return Block(operator, entering, self._from_outputs(steps, start))

    def _operator(self, steps, start, size, **how):
        """The operator of a stretch; ``how`` as in `Linearisation.adjoint_operator`."""
        if self.primal.kept is None:
            return self.primal.linearisation.adjoint_operator(steps, self.active, **how)
        return self.primal.kept.operator(steps, start, size, **how)

    def _from_outputs(self, steps, start):
        """h_c^T eta, where an output is more than the new carry."""
        if not self.active.y:
            return None
        size = steps.new_carry[0].shape[0]
        call, (consts, carry, xs) = self.primal.outputs(steps, self.active)
        _, vjp = jax.vjp(lambda carry: call(consts, carry, xs)[1], carry)
        (cts,) = vjp(stretch(list(self.y_cts), start, size))
        return self.primal.linearisation.pack(cts, cotangent=True)

    def collect(self, start, shown, state, aux=None):
        del state
        linear = self.primal.linearisation
        lambdas = linear.unpack(shown, cotangent=True)
        size = lambdas[0].shape[0]
        etas = stretch(list(self.y_cts), start, size)
        if self.active.consts or self.active.x:
            steps = self.primal.steps(start, size)
            if aux is None and linear.is_products and not self.active.y:
                # XLA sees that it is the operator of the sweep, and makes it once.
                operator = self._operator(steps, start, size, all_aux=True)
                aux = operator.matvec_and_aux(shown)[1]
            consts, xs = linear.pullback(steps, lambdas, etas, self.active, aux)
        else:
            consts, xs = [], []
        return consts, (xs, lambdas)


def _stretch_of(values: Array | Zero, start, size: int) -> Array:
    """See `trees.stretch`; zeros are made where they are read."""
    if isinstance(values, Zero):
        return jnp.zeros_like(values.value[:size])
    return stretch(values, start, size)


@dataclasses.dataclass(frozen=True)
class Tangent(System):
    """Forward-mode: solves for the carry tangents, collects the output tangents.

    Attributes:
      primal: the scan.
      active: what is differentiated.
      consts: tangents of the active consts.
      xs: tangents of the active inputs, stacked.
      carry_residuals: r, stacked, for each float carry leaf.
    """

    primal: Primal
    active: Active
    consts: Sequence[Array]
    xs: Sequence[Array]
    carry_residuals: Sequence[Array]

    @property
    def length(self):
        return self.primal.length

    @property
    def backward(self):
        return self.primal.reverse

    @property
    def adjoint(self):
        return False

    @property
    def in_turn(self):
        return self.primal.in_turn

    def block(self, start, size):
        linear = self.primal.linearisation
        steps = self.primal.steps(start, size)
        leaving = stretch(list(self.carry_residuals), start, size)
        if self.active.consts or self.active.x:
            pushed, _ = self._push(steps, start, None)
            leaving = [a + b for a, b in zip(leaving, pushed, strict=True)]
        operator = linear.tangent_operator(steps)
        return Block(operator, None, linear.pack(leaving, cotangent=False))

    def collect(self, start, shown, state, aux=None):
        linear = self.primal.linearisation
        entering = linear.unpack(shown, cotangent=False)
        last = linear.unpack(state, cotangent=False)
        size = entering[0].shape[0]
        order = slice(None, -1) if self.backward else slice(1, None)

        def shift(steps, state):
            parts = [state[None], steps[order]] if self.backward else [steps[order], state[None]]
            return jnp.concatenate(parts)

        carries = [shift(a, b) for a, b in zip(entering, last, strict=True)]
        ys = self._push(self.primal.steps(start, size), start, entering)[1] if self.active.y else []
        return None, (carries, ys)

    def _push(self, steps, start, carry_tangents):
        """Output tangents of a stretch; ``None`` for carry tangents that are zero."""
        size = steps.new_carry[0].shape[0]
        call, (consts, carry, xs) = self.primal.outputs(steps, self.active)
        t_consts, t_xs = list(self.consts), stretch(list(self.xs), start, size)
        if carry_tangents is None:
            push = lambda consts, xs: call(consts, carry, xs)  # noqa: E731
            return jax.jvp(push, (consts, xs), (t_consts, t_xs))[1]
        return jax.jvp(call, (consts, carry, xs), (t_consts, carry_tangents, t_xs))[1]
