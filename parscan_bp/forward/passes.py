"""Passes of a method that corrects all states at once, and what floats do to their theory.

A pass replaces x_t by x_t + d_t. Whatever the linear model is that gives d_1..d_n, x_1..x_t being
exact makes d_t zero and x_{t+1} <- f(x_t) exact: each pass adds at least one exact state to the
front, and n passes are enough. Floats break both halves of this.

- x + (f(x_{t-1}) - x) is rounded. So where x_{t-1} is known to be exact (f gives the same bits for
  all states before) f(x_{t-1}) itself is taken. The first pass's f is compiled apart from that of
  the others, and may have other bits: then one more pass is needed for bits, not for rounding.
- d may leave the range: products of Jacobians overflow where the guess is bad, and then
  everything after stays NaN. Long before that the linear model is wrong.

So a pass has a trust region along time: it is believed as far as its new residuals are no larger
than the largest before it, and finite. The states behind take f of the last pass's states, a pass
of a fixed point iteration, which multiplies nothing; where that is not finite, either, they stay as
they were. Thus states remain finite, residuals do not grow where the linear model is used, and the
sound part in front gets longer.

In chaos it gets longer by a few states a pass, and would be given up at the last pass only. So from
time to time the pace is looked at: where neither the settled states in front, nor the sound ones,
nor the largest residual would be there in the passes that are left, were they `OPTIMISM` times as
fast as since the last look, it is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.forward.vectors import Vectors, settled
from parscan_bp.jaxprs.replay import varying_with
from parscan_bp.types import Array

PATIENCE = 8
"""Passes in a row that may bring no more sound states than any before them."""


WINDOW = 10
"""Passes between two looks at the pace; the second look is the first that may give up."""

OPTIMISM = 4
"""How many times as fast things may still become: convergence speeds up where it is quadratic. Of
720 runs with random systems of 520 steps, contracting to chaotic, those that fail end after 25
passes instead of 66, and 13 of 270 that take long are given up."""


class _Pace(NamedTuple):
    """How far it has come.

    Attributes:
      settled: states in front whose residuals are within the tolerance, of all rows.
      sound: as ``most`` of the passes.
      residual: the largest that is finite, relative to 1 + |x|.
    """

    settled: Array
    sound: Array
    residual: Array


class _Passes(NamedTuple):
    """What goes round.

    Attributes:
      states: x_1..x_n.
      image: f(x_0)..f(x_{n-1}).
      made: passes so far.
      most: sound states of the best pass that was not sound throughout.
      stalled: passes since then.
      pace: at the last look.
    """

    states: Vectors
    image: Vectors
    made: Array
    most: Array
    stalled: Array
    pace: _Pace


def iterate(
    image: Callable[[Vectors], Vectors],
    correct: Callable[[Vectors, Vectors], Vectors],
    start: Vectors,
    tolerance: float,
    max_passes: int,
) -> tuple[Vectors, Array, Array]:
    """Corrects states until they are those of the recurrence, or it is clear that they will not be.

    It ends when residuals are within the tolerance, after ``max_passes``, when `PATIENCE` is at
    its end, when the pace is too slow for the passes that are left, or when an exact state is not
    finite.

    Args:
      image: states to f(x_{t-1}), for all t.
      correct: states and their image to the corrections d.
      start: finite states.
      tolerance: see `Forward.evaluate`.
      max_passes: the most there may be.

    Returns:
      ``(states, count, converged)``.
    """

    def goes_on(loop):
        rests = settled(loop.states, loop.image, tolerance)
        return ~rests & (loop.made < max_passes) & (loop.stalled < PATIENCE)

    def one_pass(loop):
        moves = correct(loop.states, loop.image)
        states, new_image, known, sound = _corrected(image, moves, loop)
        n = len(states[0])
        total, whole = jnp.sum(sound, dtype=jnp.int32), jnp.all(sound == n)
        advanced = whole | (total > loop.most)
        stalled = jnp.where(advanced, 0, loop.stalled + 1)
        # f of an exact state is not finite: there is no trajectory to be found.
        stalled = jnp.where(jnp.any((sound <= known) & (known < n)), PATIENCE, stalled)
        most = jnp.where(whole, loop.most, jnp.maximum(loop.most, total))
        made, pace = loop.made + 1, _pace(states, new_image, most, tolerance)
        looks, size = made % WINDOW == 0, n * sound.size
        wanted = _Pace(jnp.asarray(size), jnp.asarray(size), jnp.asarray(tolerance))
        lost = (made >= 2 * WINDOW) & _is_hopeless(loop.pace, pace, wanted, max_passes - made)
        stalled = jnp.where(looks & lost, PATIENCE, stalled)
        pace = jax.tree.map(lambda a, b: jnp.where(looks, a, b), pace, loop.pace)
        return _Passes(states, new_image, made, most, stalled, pace)

    zero, first = varying_with(jnp.zeros((), jnp.int32), start), image(start)
    pace = _pace(start, first, zero, tolerance)
    end = lax.while_loop(goes_on, one_pass, _Passes(start, first, zero, zero, zero, pace))
    return end.states, end.made, settled(end.states, end.image, tolerance)


def _corrected(image, moves: Vectors, loop: _Passes):
    """The states after a pass, their image, and for each row how many were exact and are sound."""
    states, of_states, n = loop.states, loop.image, len(loop.states[0])
    known = _leading([f == x for f, x in zip(of_states, states, strict=True)])
    follows = _is_among(n, known + 1)  # x_{t-1} is exact
    new = [
        jnp.where(follows[..., None], f, x + d)
        for x, f, d in zip(states, of_states, moves, strict=True)
    ]
    of_new = image(new)
    most = largest_finite([f - x for f, x in zip(of_states, states, strict=True)])
    sound = _leading([jnp.abs(f - x) <= most[None] for f, x in zip(of_new, new, strict=True)])

    def restarted():
        front = _is_among(n, sound)[..., None]
        mixed = [
            jnp.where(front, x, jnp.where(jnp.isfinite(f), f, last))
            for x, f, last in zip(new, of_states, states, strict=True)
        ]
        return mixed, image(mixed)

    new, of_new = lax.cond(jnp.all(sound == n), lambda: (new, of_new), restarted)
    return new, of_new, known, sound


def _pace(states: Vectors, image: Vectors, most: Array, tolerance: float) -> _Pace:
    gaps = [jnp.abs(f - x) / (1 + jnp.abs(x)) for f, x in zip(image, states, strict=True)]
    settled = jnp.sum(_leading([gap <= tolerance for gap in gaps]), dtype=jnp.int32)
    return _Pace(settled, most, jnp.max(largest_finite(gaps), initial=0))


def _is_hopeless(before: _Pace, now: _Pace, wanted: _Pace, left: Array) -> Array:
    """Whether nothing would be there after ``left`` passes, faster than since the last look."""
    floats = lambda v: jax.tree.map(lambda a: jnp.asarray(a, now.residual.dtype), v)  # noqa: E731
    before, now, wanted, left = map(floats, (before, now, wanted, left))
    times = OPTIMISM / WINDOW * left
    fronts = [
        b + times * (b - a) < end for a, b, end in zip(before[:2], now[:2], wanted[:2], strict=True)
    ]
    fallen = jnp.log(before.residual / now.residual)
    slow = times * fallen < jnp.log(now.residual / wanted.residual)
    return fronts[0] & fronts[1] & slow


def largest_finite(vectors: Vectors) -> Array:
    """The largest finite magnitude of each row, over all steps and features: (*batch, 1)."""
    finite = [jnp.where(jnp.isfinite(v), jnp.abs(v), 0) for v in vectors]
    return jnp.stack([jnp.max(v, axis=(0, -1), initial=0) for v in finite]).max(0)[..., None]


def _leading(holds: list[Array]) -> Array:
    """For each row, the number of steps in front for which it holds in every feature: (*batch)."""
    rows = jnp.stack([jnp.all(a, -1) for a in holds]).all(0)
    return jnp.where(rows.all(0), len(rows), jnp.argmin(rows, axis=0)).astype(jnp.int32)


def _is_among(n: int, count: Array) -> Array:
    """Whether each of n steps is among the first ``count`` of its row: (n, *batch)."""
    return lax.broadcasted_iota(jnp.int32, (n, *count.shape), 0) < count[None]
