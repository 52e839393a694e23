"""What is compared of a program: value, gradient, tangent, and a product with the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from tests.quickly import jit_quickly

SOLVERS = {"None": None, "Sweep": pb.Sweep(), "Blelloch": pb.Blelloch()}
ROUNDING = 1e-7
"""Relative to a leaf's largest entry, in double precision."""


def results(program: tuple[Callable, tuple]) -> dict[str, Any]:
    loss, args = program
    every = tuple(range(len(args)))
    tangents = jax.tree.map(
        lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), args
    )

    def all_of_them(*args):
        gradient = jax.grad(loss, every)
        value, (grads, product) = loss(*args), jax.jvp(gradient, args, tangents)
        made = {"value": value, "gradient": grads, "Hessian's product": product}
        return {**made, "tangent": jax.jvp(loss, args, tangents)[1]}

    return jit_quickly(all_of_them)(*args)


def differences(run: Callable[[], dict[str, Any]], want: dict[str, Any]) -> str:
    """How results differ, or nothing."""
    try:
        got = run()
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    found = []
    for what, values in want.items():
        pairs = zip(jax.tree.leaves(got[what]), jax.tree.leaves(values), strict=True)
        errors = [float(np.max(np.abs(a - b)) / (1e-9 + np.max(np.abs(b)))) for a, b in pairs]
        if not max(errors) <= ROUNDING:
            found.append(f"{what} differs by {max(errors):.1e}")
    return ", ".join(found)
