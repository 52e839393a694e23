"""Steps that compare what they make with what they carry, out of a few pieces.

The inputs come again and some are zero, so that values are equal not by chance but in every step
that has the same: there a comparison that is made twice, and rounded twice, has two answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parscan_bp as pb

LENGTH, INPUTS, HIDDEN, DIFFERENT = 9, 4, 3, 3

SOLVERS = {
    "Sweep": pb.Sweep(),
    "Sweep, kept": pb.Sweep(recompute=False),
    "Sweep, chunks": pb.Sweep(chunk=4),
    "Blelloch": pb.Blelloch(),
    "Chunked": pb.Chunked(),
    "None": None,
}


def _sorted(m, p):
    return jnp.sort(jnp.concatenate([m, p]))[-HIDDEN:]


def _chosen(m, h, p):
    index = jnp.argmax(jnp.stack([m, p]), axis=0)
    return jnp.take_along_axis(jnp.stack([h, jnp.cos(p)]), index[None], axis=0)[0]


# Each takes the best so far m, a state h, a number b and the value p that the step makes, and
# returns the new m, h and b.
PIECES: dict[str, Callable[..., Any]] = {
    "maximum": lambda m, h, b, p: (jnp.maximum(m, p), h, b),
    "minimum": lambda m, h, b, p: (-jnp.minimum(-m, -p), h, jnp.minimum(b, jnp.sum(p * p))),
    "at least": lambda m, h, b, p: (m, h + jnp.where(p >= m, p * p, jnp.sin(3 * p)), b),
    "less": lambda m, h, b, p: (jnp.where(m < p, p, m), h, b),
    "no better": lambda m, h, b, p: (m, jnp.where(jnp.max(p) <= jnp.max(m), h, jnp.cos(p)), b),
    "argmax": lambda m, h, b, p: (m, _chosen(m, h, p), b),
    "sort": lambda m, h, b, p: (_sorted(m, p), h, b),
    "top_k": lambda m, h, b, p: (lax.top_k(jnp.concatenate([m, p]), HIDDEN)[0], h, b),
    "median": lambda m, h, b, p: (m, h + jnp.median(jnp.concatenate([m, p])), b),
    "clip": lambda m, h, b, p: (m, jnp.clip(p, -jnp.abs(h), jnp.sum(p * p)), b),
    "clip at m": lambda m, h, b, p: (m, h + jnp.clip(p, m - 1, m), b),
    "equal": lambda m, h, b, p: (m, h + jnp.where(p == jnp.max(p), p * p, 0), b),
    "reduce": lambda m, h, b, p: (m, h, jnp.max(jnp.append(p * p, b))),
    "cummax": lambda m, h, b, p: (lax.cummax(jnp.stack([m, p]))[1], h, b),
    "logsumexp": lambda m, h, b, p: (m, h, jax.nn.logsumexp(jnp.append(p, b))),
    "hinge": lambda m, h, b, p: (m, h + jnp.maximum(p - m, 0), b),
    "relu": lambda m, h, b, p: (m, h + jax.nn.relu(p - m), b),
    "abs": lambda m, h, b, p: (m, h + jnp.abs(p - m), b),
    "cond": lambda m, h, b, p: (
        m,
        lax.cond(jnp.sum(p * p) <= b, lambda: h + p, lambda: h * jnp.cos(p)),
        jnp.minimum(b, jnp.sum(p * p)),
    ),
}

MADE = {
    "product": lambda x, w, h: x @ w,
    "tanh": lambda x, w, h: jnp.tanh(x @ w),
    "relu": lambda x, w, h: jax.nn.relu(x @ w),
    "at zero": lambda x, w, h: jnp.maximum(x @ w, 0),
    "of h": lambda x, w, h: jnp.sin(x @ w + 0.3 * h),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
      made: a name of `MADE`.
      pieces: names of `PIECES`, in their order.
      solver: a name of `SOLVERS`.
      dtype: of all arrays.
      seed: of the numbers.
    """

    made: str
    pieces: tuple[str, ...]
    solver: str
    dtype: str
    seed: int

    @classmethod
    def drawn(cls, seed: int, index: int) -> Case:
        rng = np.random.default_rng([seed, index])
        pieces = rng.choice(list(PIECES), rng.integers(1, 4), replace=False)
        made, solver = rng.choice(list(MADE)), rng.choice(list(SOLVERS))
        dtype = rng.choice(["float32", "float64"])
        dtype = dtype if jax.config.jax_enable_x64 else "float32"
        return cls(str(made), tuple(map(str, pieces)), str(solver), str(dtype), index)

    def arguments(self, dtype: str, seed: int = 0) -> tuple[Any, ...]:
        """Weights, first state and inputs."""
        rng = np.random.default_rng([self.seed, seed])
        kinds = rng.normal(size=(DIFFERENT, INPUTS)) / 2
        kinds[0] *= rng.integers(2)  # padding
        xs = kinds[rng.integers(DIFFERENT, size=LENGTH)]
        values = rng.normal(size=(INPUTS, HIDDEN)), rng.normal(size=HIDDEN), xs
        return tuple(jnp.asarray(np.asarray(v, np.float32), dtype) for v in values)

    def loss(self, scan: Callable[..., Any]) -> Callable[..., Any]:
        def loss(w, h, xs):
            def step(carry, x):
                m, h, b = carry
                p = MADE[self.made](x, w, h)
                for name in self.pieces:
                    m, h, b = PIECES[name](m, h, b, p)
                return (m, jnp.sin(h), b), p * h

            start = (jnp.full_like(h, -3), h, jnp.asarray(20, h.dtype))
            (m, h, b), ys = scan(step, start, xs)
            return jnp.sum(jnp.sin(m) * jnp.arange(1, 4, dtype=m.dtype)) + jnp.sum(h + b * b + ys)

        return loss
