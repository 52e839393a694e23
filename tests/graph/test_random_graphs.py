"""Random graphs by every solver of chains, against plain automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_graphs import FEW, random_graph

import parscan_bp as pb
from parscan_bp.planner import FLOPS
from tests.family import jit_once

X64 = jnp.result_type(float) == jnp.float64
RTOL = 1e-9 if X64 else 2e-3
SOLVERS = (
    None,
    pb.Blelloch(),
    pb.Sweep(),
    pb.CyclicReduction(),
    pb.Planned(workers=4, machine=FLOPS),
    pb.Blelloch(up_levels=1),
    pb.ChunkedCorrections(3),
    pb.Jacobi(),
    pb.Richardson(),
)


def slow(seeds):
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds]


SEEDS = [*range(len(SOLVERS)), *slow(range(len(SOLVERS), 200))]


def derivatives(run, params, inputs):
    """Values, gradients, a directional derivative, and how gradients change along a direction."""

    def loss(params, inputs):
        ys = run(params, inputs)
        return sum(
            jnp.sum(jnp.sin(y) * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))
            for _, y in sorted(ys.items())
        ), ys

    at = (params, inputs)
    along = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), at)
    value, slope, ys = jax.jvp(loss, at, along, has_aux=True)
    grads, hvp, _ = jax.jvp(jax.grad(loss, (0, 1), has_aux=True), at, along, has_aux=True)
    return ys, value, slope, grads, hvp


def assert_close(got, want, rtol):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.asarray(a, float), np.asarray(b, float)
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(1.0, np.abs(b).max(initial=0)))


@pytest.mark.parametrize("seed", SEEDS)
def test_derivatives_are_those_of_plain_differentiation(seed):
    """Solvers in turn, so that each takes more than twenty graphs."""
    check(random_graph(seed), SOLVERS[seed % len(SOLVERS)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_products_with_exponents(seed):
    check(random_graph(seed), pb.Blelloch(scaled=True))


@pytest.mark.parametrize("seed", [0, *slow(range(1, FEW))])
def test_an_empty_batch(seed):
    """Cotangents of the parameters are zero, those of inputs have their shapes."""
    case = random_graph(seed, batch=0)
    run = lambda p, i: pb.graph(case.nodes, p, i, outputs=case.outputs, solver=pb.Blelloch())  # noqa: E731
    got = jit_once(lambda *at: derivatives(run, *at))(case.params, case.inputs)
    (for_params, for_inputs) = got[3]
    assert all(not np.asarray(a).any() for a in jax.tree.leaves((got[1:3], for_params, got[4])))
    assert jax.tree.map(jnp.shape, for_inputs) == jax.tree.map(jnp.shape, dict(case.inputs))


@pytest.mark.parametrize("seed", [5, *slow(range(5))])
def test_half_precision(seed):
    """Not much further from single precision than plain differentiation in half precision is."""
    half, single = random_graph(seed, jnp.float16), random_graph(seed, jnp.float32)

    def all_three(at_half, at_single):
        run = lambda p, i: pb.graph(half.nodes, p, i, outputs=half.outputs)  # noqa: E731
        cases = ((run, at_half), (half.plain, at_half), (single.plain, at_single))
        return [derivatives(f, *at)[:4] for f, at in cases]

    ats = ((case.params, case.inputs) for case in (half, single))
    got, plain, want = jit_once(all_three)(*ats)
    for a, b, c in zip(*map(jax.tree.leaves, (got, plain, want)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b, c = (np.asarray(v, float) for v in (a, b, c))
        scale = max(1.0, np.abs(c).max(initial=0))
        error = np.abs(b - c).max(initial=0)
        np.testing.assert_allclose(a, c, rtol=0, atol=4 * error + 0.01 * scale)


def check(case, solver):
    def both(params, inputs):
        run = lambda p, i: pb.graph(case.nodes, p, i, outputs=case.outputs, solver=solver)  # noqa: E731
        return [derivatives(f, params, inputs) for f in (run, case.plain)]

    got, want = jit_once(both)(case.params, case.inputs)
    assert_close(got, want, RTOL)
