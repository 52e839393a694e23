"""What becomes of random systems by a method, and the claims that a certificate makes of them."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.forward.evaluate import LoopFunctions, certified_run
from tests.forward.methods import METHODS
from tests.forward.piecewise import PIECEWISE
from tests.forward.systems import FAMILIES, TRAINED, drawn, exponent, sequential, spread
from tests.quickly import jit_quickly

LENGTH, COUNT = 520, 150
CONTRACTING = -0.05
SYSTEMS = FAMILIES | TRAINED | PIECEWISE


@functools.cache
def _maker(family, count, dtype, jit, length):
    kind = SYSTEMS[family]
    step = kind.step

    def make(seed):
        args = drawn(kind, seed, count, length)
        exponents = jax.vmap(functools.partial(exponent, step))(*args)
        args = jax.tree.map(lambda a: a.astype(dtype), args)
        want, apart = (jax.vmap(functools.partial(f, step))(*args) for f in (sequential, spread))
        return args, want, {"exponent": exponents, "spread": apart}

    return jit(make)


@functools.lru_cache(maxsize=16)
def _systems(family, seed, count, dtype, jit, length):
    """Systems, what the sequential pass makes of them, and their exponents and spreads."""
    return _maker(family, count, dtype, jit, length)(seed)


@functools.cache
def _runner(family, name, certify, jit, length):
    step = SYSTEMS[family].step

    def run(params, h, us):
        functions = LoopFunctions(lambda p, h, u: (step(p, h, u), None), None)
        how = dataclasses.replace(METHODS[name].method, certify=certify, fallback=False)
        states, _, told = certified_run(how, functions, params, h, us, length, None)
        return states, told

    return jit(jax.vmap(run))


def outcomes(family, name, certify, dtype, seed=0, count=COUNT, jit=jit_quickly, length=LENGTH):
    """What became of each system: its true error and what was told of it."""
    args, want, known = _systems(family, seed, count, dtype, jit, length)
    got, told = _runner(family, name, certify, jit, length)(*args)
    axes = tuple(range(1, want.ndim))
    # The scale is the method's own, as in the report.
    error = jnp.max(jnp.abs(got - want), axes) / (1 + jnp.max(jnp.abs(got), axes))
    names = ("status", "error", "floor", "tolerance", "converged")
    found = {name: np.asarray(getattr(told, name)) for name in names}
    return found | {k: np.asarray(v) for k, v in {"true": error, **known}.items()}


def counts_of(found):
    """How many are certified, certified wrongly, understated, and refused: of those that do not
    converge, needlessly, and by need.

    Where runs of the sequential pass that are rounded otherwise lie further apart than the
    tolerance, no method can be within it but by chance: to refuse is right.
    """
    certified = found["status"] == pb.Status.OK
    allowed = found["error"] + found["floor"]
    said = found["converged"] & np.isfinite(allowed)
    known = np.maximum(found["true"], found["spread"]) <= found["tolerance"]
    refused = ~certified & found["converged"]
    flags = {
        "certified": certified,
        "wrong": certified & ~(found["true"] <= found["tolerance"]),
        "understated": said & ~(found["true"] <= allowed),
        "not converged": ~found["converged"],
        "needless": refused & known,
        "needed": refused & ~known,
    }
    return {name: int(flag.sum()) for name, flag in flags.items()}


def forget():
    """Drops programs that were compiled."""
    for cached in (_maker, _systems, _runner):
        cached.cache_clear()
