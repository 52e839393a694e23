"""The debug check of a Jacobian: its operator against the step's own derivative."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


def check_operator(
    linear: Linearisation,
    consts: Sequence[Array],
    carry: Sequence[Array],
    x: Sequence[Array],
    extra: Sequence[Array],
    key: Array,
    probes: int = 3,
) -> None:
    """Compares A v with the step's vector-Jacobian product for random v.

    Reverse-mode, as a step with a ``custom_vjp``, whose Jacobian is stated, has no other.

    Args:
      linear: what makes the operator.
      consts, carry, x, extra: values of one step.
      key: random key.
      probes: number of vectors.

    Raises:
      ValueError: naming the entry of the joined carry, what the operator gives there and
        what automatic differentiation gives.
    """
    body = linear.body
    float_carry = body.float_carry

    def step(floats):
        new, _ = body(consts, replace_at(carry, float_carry, floats), x)
        return [new[k] for k in float_carry]

    new_carry, _ = body(consts, carry, x)
    before, inputs, after = ([a[None] for a in t] for t in (carry, x, new_carry))
    steps = Steps(consts, before, inputs, after, linear.invariants(consts, extra))
    operator = linear.adjoint_operator(steps)
    floats = [carry[k] for k in float_carry]
    _, pullback = jax.vjp(step, floats)
    for k in jax.random.split(key, probes):
        keys = jax.random.split(k, len(floats))
        v = [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, floats, strict=True)]
        (want,) = pullback(v)
        packed = linear.pack([a[None] for a in v], cotangent=True)
        got = [a[0] for a in linear.unpack(operator.matvec(packed), cotangent=True)]
        for leaf, (a, b) in enumerate(zip(got, want, strict=True)):
            _compare(leaf, np.asarray(a), np.asarray(b))


def _compare(leaf: int, got: np.ndarray, want: np.ndarray) -> None:
    eps = jnp.finfo(want.dtype).eps
    error = np.abs(got - want)
    bound = 100 * float(eps) * max(1.0, float(np.abs(want).max(initial=0.0)))
    if not (error <= bound).all():
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        index = tuple(int(i) for i in np.unravel_index(worst, error.shape))
        raise ValueError(
            f"jacobian: entry {index} of float carry leaf {leaf} of a vector-Jacobian product is "
            f"{got[index]}, but automatic differentiation of the step gives {want[index]}"
        )
