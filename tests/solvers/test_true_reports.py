"""What a report says of a solution, against float64: every kind of system, every kind of solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense
from tests.family import jit_once

N, H = 40, 4
DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
EPS = float(jnp.finfo(DTYPE).eps)
SOLVERS = [
    pb.Sweep(),
    pb.CyclicReduction(),
    pb.CyclicReduction(scaled=True),
    pb.Jacobi(),
    pb.Jacobi(5, tol=1e-3),
    pb.Richardson(0.9, tol=1e-4),
    pb.BiCGStab(tol=1e-3),
    pb.Truncated(8),
    pb.Truncated(8, sliding=True),
]


def systems():
    draw = lambda k, *shape: np.random.default_rng(k).normal(size=shape)  # noqa: E731
    easy = draw(N, N, H, H)
    easy *= (0.5 / np.abs(easy).sum(-1).max(-1))[:, None, None]
    turn = np.linalg.qr(draw(1, N, H, H))[0]
    found = {
        "easy": easy,
        "singular": easy * (np.arange(H) > 1),
        "neutral": turn,
        # Nilpotent in each step, and a thousand times the identity beside the diagonal.
        "non-normal": np.broadcast_to(np.eye(H, k=1) * 1e3, (N, H, H)),
        "exploding": 3 * turn,
    }
    as_given = lambda a: np.asarray(jnp.asarray(a, DTYPE), np.float64)  # noqa: E731
    return {name: as_given(a) for name, a in found.items()}, as_given(draw(0, N + 1, H))


def substituted(a, g):
    out = [g[-1]]
    for t in reversed(range(len(a))):
        out.append(g[t] + a[t] @ out[-1])
    return np.stack(out[::-1])


def backward_error(a, g, solution):
    apply = lambda a, v: np.einsum("tij,tj->ti", a, v)  # noqa: E731
    out, added, v = solution[:-1], g[:-1], solution[1:]
    size = np.abs(out) + np.abs(added) + apply(np.abs(a), np.abs(v))
    return (np.abs(out - added - apply(a, v)) / size).max()


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_residuals_and_statuses_are_true(solver):
    maps, g = systems()
    run = jit_once(lambda a, g: pb.solve(pb.Uniform(Dense(a), g), solver, report=True))
    for name, a in maps.items():
        solution, report = run(jnp.asarray(a, DTYPE), jnp.asarray(g, DTYPE))
        solution = np.asarray(solution, np.float64)
        true = backward_error(a, g, solution)
        assert abs(true - report.residual) <= 1e-3 * true + 10 * EPS, name
        want = substituted(a, g)
        error = np.linalg.norm(solution - want) / np.linalg.norm(want)
        direct = solver.needs == "operators" or solver in (pb.Sweep(), pb.Jacobi())
        if direct:
            assert report.status == pb.Status.OK and error < 100 * EPS, name
        elif report.status == pb.Status.OK:
            assert report.residual <= report.bound or not isinstance(solver, pb.Truncated)
            assert error < 0.01, name
        else:
            assert report.residual > report.bound, name
        if name == "exploding" and not direct and not isinstance(solver, pb.Richardson):
            assert report.status != pb.Status.OK and error > 0.1


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("solver", [*SOLVERS[1:4], pb.Richardson(tol=0.02), pb.BiCGStab()], ids=str)
def test_short_dtypes(solver, dtype):
    maps, g = systems()
    a, g = (jnp.asarray(v, dtype) for v in (maps["easy"], g))
    run = jit_once(lambda a, g: pb.solve(pb.Uniform(Dense(a), g), solver, report=True))
    solution, report = run(a, g)
    want = substituted(*(np.asarray(v, np.float64) for v in (a, g)))
    assert solution.dtype == dtype and report.status == pb.Status.OK
    allowed = float(jnp.finfo(dtype).eps) * (30 if isinstance(solver, pb.BiCGStab) else 4)
    assert np.linalg.norm(np.asarray(solution, np.float64) - want) < allowed * np.linalg.norm(want)
