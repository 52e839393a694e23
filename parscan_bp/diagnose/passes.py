"""The passes over all steps: values forwards, tangents forwards, cotangents backwards.

They are loops of JAX, which keep what enters each step, and how bad every leaf is after it. Stacked
arrays are in the order of xs; levels and sizes, which are NumPy's, in the order of running.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.diagnose.derivatives import Some, of_jaxpr, pull, push
from parscan_bp.diagnose.levels import of_each
from parscan_bp.diagnose.steps import StepLoop
from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.originals import lax_scan
from parscan_bp.trees import at_least_single, largest
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class StepValues:
    """The values of all steps.

    Attributes:
      carries: those that enter each step, stacked.
      last, ys: the results of the loop.
      before: levels of init.
      levels: of the new carry and the outputs, shape (steps, leaves).
    """

    carries: Sequence[Array]
    last: Sequence[Array]
    ys: Sequence[Array]
    before: np.ndarray
    levels: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """Tangents pushed through all steps.

    Attributes:
      carries: those that enter each step, stacked.
      levels: of what a step makes of them, shape (steps, leaves).
      growth: how much larger the largest entry of the carry's is after each step.
    """

    carries: Some
    levels: np.ndarray
    growth: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Cotangents:
    """Cotangents pulled back through all steps.

    Attributes:
      carries: those that enter each step from behind, which are of its new carry, stacked.
      before: levels of those of the last carry.
      levels: of those that a step makes for its constants, carry and inputs, shape
        (steps, leaves), in the order of running forwards.
      norms: of the carry, Euclidean, before each step and at last, in the order of running.
    """

    carries: Some
    before: np.ndarray
    levels: np.ndarray
    norms: np.ndarray


def push_values(steps: StepLoop, threshold: float) -> StepValues:
    """Runs the steps."""
    count = len(steps.init)

    def step(carry, x):
        out = evaluate(steps.body, [*steps.consts, *carry, *x])
        return out[:count], (carry, out[count:], of_each(out, threshold))

    last, (carries, ys, found) = _loop(step, list(steps.init), list(steps.xs), steps)
    before: list[Any] = [of_each(steps.init, threshold), jnp.zeros(len(ys), jnp.int8)]
    return StepValues(carries, last, ys, np.concatenate(before), _in_order(found, steps))


def push_tangents(
    steps: StepLoop,
    values: StepValues,
    tangents: tuple[Some, Some, Some],
    threshold: float,
    *,
    scaled: bool,
) -> Tangents:
    """Pushes tangents through the steps.

    Args:
      steps, values: the loop, and its values.
      tangents: of constants, init and xs.
      threshold: see `levels`.
      scaled: whether those of the carry are made as large as 1 again before each step.
    """
    consts, init, inputs = map(list, tangents)
    count, program = len(steps.init), of_jaxpr(steps.body)

    def step(carry, row):
        now, x, dx = row
        out = push(program, [*steps.consts, *now, *x], [*consts, *carry, *dx])
        found, size = of_each(out, threshold), _largest(out[:count])
        if scaled:
            # Less than the least normal number may be none for a division.
            factor = jnp.where(size >= jnp.finfo(size.dtype).tiny, size, 1)
            out = [None if t is None else t / factor.astype(t.dtype) for t in out]
        return out[:count], (carry, found, size)

    rows = list(values.carries), list(steps.xs), inputs
    _, (carries, found, growth) = _loop(step, _filled(init, steps.init), rows, steps)
    return Tangents(carries, _in_order(found, steps), _in_order(growth, steps))


def pull_cotangents(
    steps: StepLoop, values: StepValues, last: Some, ys: Some, threshold: float
) -> Cotangents:
    """Pulls cotangents of the last carry and of the outputs back through the steps."""
    program, begin = of_jaxpr(steps.body), len(steps.consts)
    end, last = begin + len(steps.init), _filled(last, steps.init)

    def step(carry, row):
        now, x, y = row
        found = pull(program, [*steps.consts, *now, *x], [*carry, *y])
        entering = found[begin:end]
        return entering, (carry, of_each(found, threshold), norm(entering))

    rows = list(values.carries), list(steps.xs), list(ys)
    backwards = dataclasses.replace(steps, reverse=not steps.reverse)
    _, (carries, found, norms) = _loop(step, last, rows, backwards)
    norms = np.append(_in_order(norms, steps), norm(last))
    before: list[Any] = [np.zeros(begin), of_each(last, threshold), np.zeros(len(steps.xs))]
    return Cotangents(carries, np.concatenate(before), _in_order(found, steps), norms)


def norm(arrays: Some) -> Array:
    """The Euclidean norm of all of them together, whose squares need not be in the range."""
    size = _largest(arrays)
    unit = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
    parts = [jnp.sum((jnp.abs(a) / unit) ** 2) for a in arrays if a is not None]
    return size if not parts else unit * jnp.sqrt(functools.reduce(operator.add, parts))


def _largest(arrays: Some) -> Array:
    """The largest magnitude, at least in single precision; 0 without any."""
    sizes = [jnp.abs(a) for a in arrays if a is not None]
    kind = at_least_single(*[a.dtype for a in sizes])
    return largest([a.astype(kind) for a in sizes]) if sizes else jnp.zeros((), kind)


def _filled(derivatives: Some, values: Sequence[Any]) -> list[Any]:
    """Zeros where there are none of a leaf that has tangents: a step may make some."""
    return [
        jnp.zeros_like(v) if d is None and is_differentiable(jax.typeof(v)) else d
        for d, v in zip(derivatives, values, strict=True)
    ]


def _loop(step, init, rows, steps: StepLoop) -> Any:
    """`lax.scan`, compiled, in the order of the steps."""
    run = functools.partial(lax_scan, step, length=steps.length, reverse=steps.reverse)
    return jax.jit(run)(init, rows)


def _in_order(stacked: Array, steps: StepLoop) -> np.ndarray:
    """Rows in the order of running."""
    rows = np.asarray(stacked)
    return rows[::-1] if steps.reverse else rows
