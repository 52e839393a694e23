"""`diagnose`: which step, leaf and operation made a number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import check_positive, described
from parscan_bp.diagnose.diagnosis import Diagnosis
from parscan_bp.diagnose.faults import Faults
from parscan_bp.diagnose.passes import (
    Cotangents,
    StepValues,
    Tangents,
    pull_cotangents,
    push_tangents,
    push_values,
)
from parscan_bp.diagnose.steps import StepLoop, steps_of
from parscan_bp.diagnose.target import Objective, objective_of
from parscan_bp.jaxprs.read import differentiable
from parscan_bp.report import cotangents as pseudo_random
from parscan_bp.trees import replace_at
from parscan_bp.types import PyTree

T = TypeVar("T")


def diagnose(
    step: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    loss: Callable[[PyTree, PyTree], Any] | None = None,
    cotangents: tuple[PyTree, PyTree] | None = None,
    threshold: float | None = None,
    fraction: float = 1e-3,
) -> Diagnosis:
    """Runs a scan and its backward pass, and says where something is not finite, or too large.

    With the carry h_t = f(h_{t-1}, x_t), its Jacobians J_t, and what a loss hands to each, g_t,

        lambda_{t-1} = g_{t-1} + J_t^T lambda_t

    it looks at h_t and the outputs, at a tangent that is pushed through every J_t, and at lambda_t
    with the cotangents of inputs and constants. The first step where one of them is NaN or infinite
    (and was not in ``init``) is run again equation by equation, into calls, branches and loops:
    so the operation is found whose operands are finite, and whose value or slope is not. Values are
    followed in the order of running, cotangents from the last step back. What a fault in the values
    makes of derivatives is not told: mend it, and call again.

    It stores all carries and cotangents, runs the step more than once (its effects, too), and is
    for looking, not for training.

    Args:
      step, init, xs, length, reverse: as in `scan` and `jax.lax.scan`, with numbers: not inside of
        `jax.jit` or `jax.grad`. Leaves of the carry may be integers, bools and keys.
      loss: ``(carry, ys) -> scalar``, a real number of the last carry and the stacked outputs,
        whose derivative begins the backward pass. ``None`` is the sum of all float numbers of the
        last carry, and no outputs.
      cotangents: these derivatives themselves in the place of a loss: of ``(carry, ys)``, in their
        structure, as a function of `jax.vjp` takes them; what stands for integers is not read.
      threshold: the largest magnitude of a number of a carry, output or cotangent that is fine; of
        a tangent of largest entry 1, too, after one step. ``None`` for any finite one.
      fraction: of the norm of a cotangent, for `Diagnosis.memory`.

    Returns:
      The `Diagnosis`; print it.

    Raises:
      TypeError, ValueError: as `jax.lax.scan`; for traced values; if ``loss`` returns no real
        scalar, ``cotangents`` have another structure or shape, or a number is not positive.

    Source: Benettin, Galgani, Giorgilli, Strelcyn, Meccanica 15 (1980), for the exponent.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (h * x, jnp.log(h))
      >>> fault = pb.diagnose(step, 1.0, jnp.array([2.0, 0.0, 3.0])).first
      >>> fault.quantity, fault.step, fault.what, fault.operation.primitive
      ('output', 2, 'infinite', 'log')
    """
    if threshold is not None:
        check_positive("threshold", threshold)
    check_positive("fraction", fraction, most=1)
    if loss is not None and not callable(loss):
        raise TypeError(f"loss: got {described(loss)}; a function of (carry, ys) is wanted")
    if loss is not None and cotangents is not None:
        raise ValueError("loss, cotangents: got both; one of them is wanted")
    _check_numbers("init", init)
    _check_numbers("xs", xs)
    steps, names, out = steps_of(step, init, xs, length, reverse)
    _check_numbers("step", steps.consts)
    most = math.inf if threshold is None else float(threshold)
    # NaN is what is looked for.
    with jax.debug_nans(False), jax.debug_infs(False), jax.disable_jit(False):
        values = push_values(steps, most)
        target = objective_of(loss, cotangents, out, [*values.last, *values.ys])
        faults = Faults(steps, names, values, most)
        found = [*faults.of_values(), *faults.of_target(target)]
        tangents, why = _attempt("Jacobians", lambda: _pushed(steps, values, most))
        found += [] if tangents is None else faults.of_jacobian(tangents)
        pulled, why_not = _attempt("cotangents", lambda: _pulled(steps, values, target, most))
        if pulled is not None and target.is_finite:
            found += faults.of_cotangents(pulled[0], target.cotangents[len(steps.init) :])
    nothing = np.full(steps.length + 1, math.nan)
    return Diagnosis(
        tuple(found),
        steps.length,
        steps.reverse,
        nothing if pulled is None else pulled[0].norms,
        nothing[1:] if tangents is None else tangents.growth,
        None if tangents is None else _exponent(tangents.growth),
        None if pulled is None else _memory(pulled[1].norms, fraction),
        fraction,
        threshold,
        (*faults.remarks(), *why, *why_not),
    )


def _attempt(what: str, run: Callable[[], T]) -> tuple[T | None, tuple[str, ...]]:
    """What a pass returns; or why there is none, where the step has no such derivative."""
    try:
        return run(), ()
    except (TypeError, ValueError, NotImplementedError) as error:
        return None, (f"{what} were not looked at: {str(error).splitlines()[0]}",)


def _pushed(steps: StepLoop, values: StepValues, threshold: float) -> Tangents | None:
    """Of a tangent of init with pseudo-random signs; ``None`` if there are no floats."""
    start = _signs(steps.init)
    if all(v is None for v in start):
        return None
    given = [None] * len(steps.consts), start, [None] * len(steps.xs)
    return push_tangents(steps, values, given, threshold, scaled=True)


def _pulled(
    steps: StepLoop, values: StepValues, target: Objective, threshold: float
) -> tuple[Cotangents, Cotangents]:
    """Of the target, and of cotangents of the last carry alone with pseudo-random signs."""
    count = len(steps.init)
    last, ys = target.cotangents[:count], target.cotangents[count:]
    nothing = [None] * len(ys)
    return (
        pull_cotangents(steps, values, last, ys, threshold),
        pull_cotangents(steps, values, _signs(values.last), nothing, threshold),
    )


def _signs(arrays: Sequence[Any]) -> list[Any]:
    moving = differentiable([jax.typeof(a) for a in arrays])
    signs = [jnp.sign(a) for a in pseudo_random([arrays[k] for k in moving])]
    return replace_at([None] * len(arrays), moving, signs)


def _exponent(growth: np.ndarray) -> float | None:
    """Of the second half; during the first the tangent turns to where it grows most."""
    if not np.isfinite(growth).all():
        return math.nan
    with np.errstate(divide="ignore"):
        return float(np.mean(np.log(growth[len(growth) // 2 :]))) if len(growth) else None


def _memory(norms: np.ndarray, fraction: float) -> float | None:
    if not norms[-1] > 0 or not np.isfinite(norms).all():
        return None
    below = np.flatnonzero(norms[::-1] < fraction * norms[-1])
    return int(below[0]) if len(below) else math.inf


def _check_numbers(name: str, tree: PyTree) -> None:
    if any(isinstance(v, jax.core.Tracer | jax.ShapeDtypeStruct) for v in jax.tree.leaves(tree)):
        holds = "closes over" if name == "step" else "holds"
        raise TypeError(
            f"{name}: got one that {holds} traced values; numbers are wanted: call diagnose "
            "outside of jax.jit, jax.grad and jax.vmap"
        )
