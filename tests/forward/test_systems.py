"""No error is silent: random systems from contracting to chaotic, by every method."""

import itertools
import math
import os

import jax
import numpy as np
import pytest

import parscan_bp as pb
from tests.forward.methods import METHODS
from tests.forward.outcomes import CONTRACTING, outcomes
from tests.forward.systems import FAMILIES, TRAINED


def judge(found):
    """The claims; returns how many contracting systems were refused for nothing, and how many
    there are.

    Where runs of the sequential pass that are rounded otherwise lie further apart than the
    tolerance, no method can be within it but by chance: to refuse is right.
    """
    certified = found["status"] == pb.Status.OK
    allowed = found["error"] + found["floor"]
    said = found["converged"] & np.isfinite(allowed)
    silent = certified & ~(found["true"] <= found["tolerance"])
    assert not silent.any(), {k: v[silent] for k, v in found.items()}
    under = said & ~(found["true"] <= allowed)
    assert not under.any(), {k: v[under] for k, v in found.items()}
    contracting = found["exponent"] < CONTRACTING
    known = np.maximum(found["true"], found["spread"]) <= found["tolerance"]
    needless = contracting & ~certified & known
    return int(needless.sum()), int(contracting.sum())


SLOW = pytest.mark.slow
ALL = tuple(FAMILIES)
QUICK = {
    ("chunks to the end", "float32"): ("elman",),
    ("chunks to the end", "float64"): ("elman",),
}
"""The families that run each time: those whose steps compile quickly, 300 systems."""


def _cases():
    """All families by every method in both precisions; few of them are quick enough."""
    for name in METHODS:
        for dtype in ("float32", "float64"):
            quick = QUICK.get((name, dtype), ())
            if quick != ALL:
                yield pytest.param(name, dtype, ALL, marks=SLOW, id=f"{name}-{dtype}")
            if quick:
                yield pytest.param(name, dtype, quick, id=f"{name}-{dtype}-{len(quick)}")


@pytest.mark.parametrize(("name", "dtype", "families"), list(_cases()))
def test_estimates(name, dtype, families):
    """150 systems of a family."""
    with jax.enable_x64(True):
        counts = [judge(outcomes(family, name, "estimate", dtype)) for family in families]
    needless, contracting = np.sum(counts, 0)
    assert contracting > 20
    assert needless <= 0.05 * contracting or not METHODS[name].steady


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        pytest.param(dtype, family, marks=() if (dtype, family) == ("float64", "elman") else SLOW)
        for dtype in ("float32", "float64")
        for family in FAMILIES
    ],
)
def test_bounds(dtype, family):
    """A bound may refuse what an estimate does not; it never understates."""
    with jax.enable_x64(True):
        found = outcomes(family, "chunks to the end", "bound", dtype, count=60)
        judge(found)
        contracting = found["exponent"] < -0.3
        if dtype == "float64" and contracting.any():
            assert (found["status"][contracting] == pb.Status.OK).mean() > 0.5, family


@SLOW
def test_floors_of_errors_that_end_in_one_direction():
    """In a single draw of signs they may cancel; of one of these systems they did in two."""
    with jax.enable_x64(True):
        found = outcomes("elman", "chunks", "estimate", "float32", 111, 100, jax.jit)
    judge(found)


SYSTEMS = int(os.environ.get("FORWARD_SYSTEMS", 10_000))
"""How many the long test takes in each precision."""
AT_ONCE = 100


@SLOW
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES | TRAINED)
def test_ten_thousand_systems(family, dtype):
    """Trained cells among them. Each system is made once, for all methods.

    Programs are optimised, as each runs many times: three times as fast, and more with `Newton`.
    """
    turns = math.ceil(SYSTEMS / (AT_ONCE * len(FAMILIES | TRAINED)))
    counts = dict.fromkeys(METHODS, np.zeros(2, int))
    with jax.enable_x64(True):
        for seed, name in itertools.product(range(1, 1 + turns), METHODS):
            found = outcomes(family, name, "estimate", dtype, seed, AT_ONCE, jax.jit)
            counts[name] = counts[name] + judge(found)
    print()
    for name, (needless, contracting) in counts.items():
        total = AT_ONCE * turns
        print(f"{family}, {name}: {total} systems, {contracting} contract, {needless} needless")
    steady = [count for name, count in counts.items() if METHODS[name].steady]
    assert all(needless <= 0.05 * contracting for needless, contracting in steady)
