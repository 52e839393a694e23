"""Systems for the kernels with their float64 solutions."""

import collections
import dataclasses
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp import kernels
from parscan_bp.kernels import dense_scan, diagonal_scan, factored_scan, weighted_scan

needs_kernels = pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))

SIZES = (1, 2, 3, 4, 8, 10, 16, 20, 32, 33, 60, 64, 100, 128)
LENGTHS = (1, 2, 31, 32, 33, 1000)
BATCHES = (1, 3, 16)
GRID = list(itertools.product(SIZES, LENGTHS, BATCHES))
MOST = {"gru": 96, "lstm": 96}
"""The largest size of the structures whose maps are formed on chip."""

CASES = [
    (structure, length, batch, size)
    for structure in ("diagonal", "dense", "weighted", "gru", "lstm")
    for size, length, batch in GRID
    if size <= MOST.get(structure, size) and (structure != "lstm" or size % 2 == 0)
]


def chunked(length):
    """Radices with chunks of several steps, where there are several."""
    return [max(1, math.isqrt(length))]


def in_turn(cases, kind):
    """Parameters of a test with compiled kernels: each case and then the direction.

    Of every kind one case runs each time, their sizes and directions in turn; the others are
    slow.
    """
    by_kind = collections.defaultdict(list)
    for case in itertools.product(cases, (False, True)):
        by_kind[kind(*case[0])].append(case)
    # Seven shares no factor with the number of lengths, batches and directions.
    run = {alike[7 * k % len(alike)] for k, alike in enumerate(by_kind.values())}
    return [
        pytest.param(*case[0], case[1], marks=() if case in run else pytest.mark.slow)
        for alike in by_kind.values()
        for case in alike
    ]


@dataclasses.dataclass(frozen=True)
class Case:
    """x_t = A_t x_{t-1} + b_t, as the arguments of a scan of kernels and with its solution.

    Attributes:
      structure: "diagonal", "dense", "weighted" (W diag(d)), "gru" or "lstm" (their factors, H
        being that of all groups of units together).
      args: the arrays that the scan takes, in the dtype asked for.
      want: x (T, B, H) in float64, computed from ``args``.
    """

    structure: str
    args: tuple
    want: np.ndarray

    def scan(self, *args, **how):
        """The scan of kernels, as a function of `args`."""
        run = {"diagonal": diagonal_scan, "dense": dense_scan, "weighted": weighted_scan}
        return run.get(self.structure, factored_scan)(*args, **how).reshape(self.want.shape)

    def check(self, got, tolerance=2e-6):
        """Elementwise, against the largest entry."""
        scale = np.abs(self.want).max()
        np.testing.assert_allclose(np.asarray(got) / scale, self.want / scale, 0, tolerance)


def draw(structure, length, batch, size, *, reverse=False, dtype=jnp.float32):
    """A case whose maps neither vanish nor explode over long products."""
    rng = np.random.default_rng([length, batch, size])
    b = _rounded(rng.normal(size=(length, batch, size)), dtype)
    start = _rounded(rng.normal(size=(batch, size)), jnp.float32)
    if structure == "diagonal":
        d = _rounded(rng.uniform(-1, 1, size=b.shape), dtype)
        want = _substitute(lambda t, x: d[t] * x, b, start, reverse)
        args = d.reshape(length, -1), b.reshape(length, -1)
        return Case(structure, (*_arrays(dtype, *args), jnp.float32(start.ravel())), want)
    w = _rounded(rng.normal(size=(size, size)) * 0.95 / np.sqrt(size), dtype)
    if structure == "weighted":
        d = _rounded(rng.uniform(0.2, 1, size=b.shape), dtype)
        want = _substitute(lambda t, x: (d[t] * x) @ w.T, b, start, reverse)
        return Case(structure, (*_arrays(dtype, w, d, b), jnp.float32(start)), want)
    if structure in GROUPS:
        return _factored(structure, rng, b, start, reverse, dtype)
    a = rng.normal(size=(length, batch, size, size)) * 0.95 / np.sqrt(size)
    a = _rounded(a, dtype)
    want = _substitute(lambda t, x: np.einsum("bij,bj->bi", a[t], x), b, start, reverse)
    return Case(structure, (*_arrays(dtype, a, b), jnp.float32(start)), want)


GROUPS = {"gru": (3, 1), "lstm": (4, 2)}
"""Gates and groups of units of a cell."""


def _factored(structure, rng, b, start, reverse, dtype):
    (length, batch, size), (gates, states) = b.shape, GROUPS[structure]
    units = size // states
    w = _rounded(rng.normal(size=(units, gates * units)) / np.sqrt(gates * size), dtype)
    d = _rounded(rng.uniform(-1, 1, size=(length, batch, gates, states, units)), jnp.float32)
    e = _rounded(rng.uniform(-0.4, 0.4, size=(length, batch, states, states, units)), jnp.float32)
    by_gate = w.reshape(units, gates, units)

    def apply(t, x):
        x = x.reshape(batch, states, units)
        u = np.einsum("bgsh,bsh->bgh", d[t], x)
        out = np.einsum("bsrh,brh->bsh", e[t], x)
        out[:, 0] += np.einsum("igj,bgj->bi", by_gate, u)
        return out.reshape(batch, size)

    want = _substitute(apply, b, start, reverse)
    shapes = (length, batch, states, units), (batch, states, units)
    args = (*_arrays(jnp.float32, d, e, b.reshape(shapes[0]), start.reshape(shapes[1])),)
    return Case(structure, (*_arrays(dtype, w), *args), want)


def _rounded(x, dtype):
    """Float64 numbers that ``dtype`` represents."""
    return np.asarray(jnp.asarray(x, dtype), np.float64)


def _arrays(dtype, *values):
    return tuple(jnp.asarray(v, dtype) for v in values)


def _substitute(apply, b, x, reverse):
    out = np.empty_like(b)
    steps = range(len(b))
    for t in reversed(steps) if reverse else steps:
        x = apply(t, x) + b[t]
        out[t] = x
    return out
