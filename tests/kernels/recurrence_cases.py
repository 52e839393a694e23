"""Recurrences of cells for the kernels, with their float64 values and cotangents."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp import cells
from parscan_bp.cells.fused import FusedCell

CELLS = {
    "elman": cells.Elman(),
    "relu": cells.Elman("relu"),
    "gru": cells.GRU(),
    "gru_one_bias": cells.GRU(recurrent_bias=False),
    "lstm": cells.LSTM(),
}
INPUTS = 3


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A cell's recurrence in the dtype asked for, and what it is in float64.

    Attributes:
      of_last: whether cotangents are zero but for the last carry, and no others arrive.
      args: parameters, first carry, inputs (T, B, 3).
      gamma: cotangents of the carry after every step.
      after: the carry after every step, in float64, from the loop of the cell itself.
      cts: cotangents of parameters and inputs, in float64, by automatic differentiation.
    """

    cell: str
    reverse: bool
    of_last: bool
    args: tuple
    gamma: list
    after: list
    cts: tuple

    def forward(self, run):
        """The carry after every step by ``run(rule, v, weights, first, reverse=)``."""
        params, carry, xs = self.args
        run = functools.partial(run, reverse=self.reverse)
        return FusedCell(CELLS[self.cell]).forward(run, params, jax.tree.leaves(carry), xs)

    def backward(self, run, after):
        """Cotangents of parameters and inputs, the same way."""
        params, carry, xs = self.args
        run = functools.partial(run, reverse=not self.reverse)
        init = jax.tree.leaves(carry)
        before = [self._shift(c, a) for c, a in zip(init, after, strict=True)]
        form = FusedCell(CELLS[self.cell])
        end = 0 if self.reverse else -1
        last = [g[end] for g in self.gamma]
        cts = None if self.of_last else self.gamma
        grads, _, dx = form.backward(run, params, init, before, xs, after, cts, last)
        return grads, dx

    def _shift(self, first, after):
        parts = [after[1:], first[None]] if self.reverse else [first[None], after[:-1]]
        return jnp.concatenate(parts)

    def check(self, run, tolerance):
        """Every number against the largest of its kind: of one parameter, a sum may cancel."""
        after = jax.jit(lambda: self.forward(run))()
        got = after, *jax.jit(lambda: self.backward(run, after))()
        for kind in zip(got, (self.after, *self.cts), strict=True):
            _close(*kind, tolerance)


def draw(cell, length, batch, size, *, reverse=False, dtype=jnp.float32, of_last=False):
    """A recurrence with weights of variance 1 / H, so that it neither dies nor saturates."""
    rng = np.random.default_rng([length, batch, size])

    def normal(shape, scale=1.0):
        return jnp.asarray(rng.normal(size=shape) * scale, dtype)

    shapes = jax.eval_shape(lambda: CELLS[cell].init(jax.random.key(0), INPUTS, size, jnp.float32))
    scale = {"wi": 0.5, "wh": 0.9 / np.sqrt(size)}
    params = {k: normal(v.shape, scale.get(k, 0.1)) for k, v in shapes.items()}
    carry = jax.tree.map(
        lambda c: normal(c.shape), CELLS[cell].initial_carry((batch,), size, jnp.float32)
    )
    args = params, carry, normal((length, batch, INPUTS))
    gamma = [normal((length, batch, size)) for _ in jax.tree.leaves(carry)]
    if of_last:
        gamma = [jnp.zeros_like(g).at[0 if reverse else -1].set(g[0]) for g in gamma]
    return Recurrence(cell, reverse, of_last, args, gamma, *_exact(cell, reverse, args, gamma))


def _exact(cell, reverse, args, gamma):
    with jax.enable_x64(True):
        args, gamma = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), (args, gamma))

        def after(params, carry, xs):
            def step(carry, x):
                carry, _ = CELLS[cell](params, carry, x)
                return carry, jax.tree.leaves(carry)

            return lax.scan(step, carry, xs, reverse=reverse)[1]

        @jax.jit
        def exact(args, gamma):
            states, pull = jax.vjp(after, *args)
            params, _, xs = pull(gamma)
            return states, (params, xs)

        return jax.tree.map(np.asarray, exact(args, gamma))


def _close(got, want, tolerance):
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    scale = max(np.abs(b).max() for b in want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, 0, tolerance * scale)
