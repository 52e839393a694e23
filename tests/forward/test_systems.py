"""No error is silent: random systems from contracting to chaotic, by every method."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from tests.forward.methods import METHODS, named
from tests.forward.systems import FAMILIES, drawn, exponent, sequential

LENGTH, COUNT = 520, 60
CONTRACTING = -0.05


@functools.cache
def _systems(family, seed, count, dtype):
    """Systems, what the sequential pass makes of them, and their exponents."""
    step = FAMILIES[family].step
    args = drawn(FAMILIES[family], seed, count, LENGTH)
    exponents = jax.jit(jax.vmap(functools.partial(exponent, step)))(*args)
    args = jax.tree.map(lambda a: a.astype(dtype), args)
    return args, jax.jit(jax.vmap(functools.partial(sequential, step)))(*args), exponents


@functools.cache
def _runner(family, name, certify):
    step = FAMILIES[family].step

    def run(params, h, us):
        body = lambda h, u: (h := step(params, h, u), h)  # noqa: E731
        how = {"forward": METHODS[name].method, "certify": certify, "fallback": False}
        _, ys, report = pb.scan(body, h, us, solver=pb.Sweep(), report=True, **how)
        return ys, report.forward

    return jax.jit(jax.vmap(run))


def outcomes(family, name, certify, dtype, seed=0, count=COUNT):
    """What became of each system: its true error and what was told of it."""
    args, want, exponents = _systems(family, seed, count, dtype)
    got, told = _runner(family, name, certify)(*args)
    axes = tuple(range(1, want.ndim))
    # The scale is the method's own, as in the report.
    error = jnp.max(jnp.abs(got - want), axes) / (1 + jnp.max(jnp.abs(got), axes))
    names = ("status", "error", "floor", "tolerance", "converged")
    found = {name: np.asarray(getattr(told, name)) for name in names}
    return {**found, "true": np.asarray(error), "exponent": np.asarray(exponents)}


def judge(found, *, steady):
    """The claims; returns how many contracting systems were refused for nothing, and how many
    there are."""
    certified = found["status"] == pb.Status.OK
    allowed = found["error"] + found["floor"]
    said = found["converged"] & np.isfinite(allowed)
    silent = certified & ~(found["true"] <= found["tolerance"])
    assert not silent.any(), {k: v[silent] for k, v in found.items()}
    under = said & ~(found["true"] <= allowed)
    assert not under.any(), {k: v[under] for k, v in found.items()}
    contracting = found["exponent"] < CONTRACTING
    needless = contracting & ~certified & (found["true"] <= found["tolerance"])
    return int(needless.sum()) if steady else 0, int(contracting.sum())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", named())
def test_estimates(name, dtype):
    """300 systems."""
    with jax.enable_x64(True):
        counts = [
            judge(outcomes(family, name, "estimate", dtype), steady=METHODS[name].steady)
            for family in FAMILIES
        ]
    needless, contracting = np.sum(counts, 0)
    assert contracting >= 100 and needless <= 0.05 * contracting


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bounds(dtype):
    """A bound may refuse what an estimate does not; it never understates."""
    with jax.enable_x64(True):
        for family in FAMILIES:
            found = outcomes(family, "chunks to the end", "bound", dtype)
            judge(found, steady=False)
            contracting = found["exponent"] < -0.3
            if dtype == "float64" and contracting.any():
                assert (found["status"][contracting] == pb.Status.OK).mean() > 0.5, family


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_ten_thousand_systems(name, dtype):
    with jax.enable_x64(True):
        counts = [
            judge(outcomes(family, name, "estimate", dtype, seed, 200), steady=METHODS[name].steady)
            for family in FAMILIES
            for seed in range(1, 11)
        ]
    needless, contracting = np.sum(counts, 0)
    assert needless <= 0.05 * contracting
