"""Correction rounds between devices: as many as it takes, and another way where they fail."""

import pytest

import parscan_bp as pb

START = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from tests.parallel.sharded_cases import check, line_mesh

mesh = line_mesh(4)
SOLVER = pb.Sharded("time", mesh, method="corrections")

def loss(a, xs, solver=SOLVER):
    step = lambda c, x: (a * c + x, c)
    carry, ys, report = pb.scan(step, jnp.zeros(3), xs, solver=solver, report=True)
    return (ys**2).sum(), report
"""

ROUNDS = (
    START
    + """
def run(a, length):
    xs = jnp.sin(jnp.arange(3.0 * length)).reshape(length, 3)
    both = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=2)
    (value, report), gradient = both(a, xs, SOLVER)
    (_, _), want = both(a, xs, pb.Sweep())
    np.testing.assert_allclose(gradient, want, rtol=3e-6)
    return int(report.iterations), bool(report.fell_back), pb.Status(int(report.status)).name

# Sixty steps of 0.5 are forgotten by the neighbour, and so is nothing of what grows.
assert run(0.5, 240) == (1, False, "OK")
assert run(1.02, 240) == (3, False, "OK")
# Nothing is forgotten, and 0 is what arrives after the last device.
assert run(1.0, 241) == (3, False, "OK")
"""
)

RANGE = (
    START
    + """
# Cotangents that overflow: those of the sequential sweep, entry by entry, and said.
xs = jnp.sin(jnp.arange(1200.0)).reshape(400, 3)
a = jnp.array([0.5, 1000.0, 0.9])
each = lambda a, solver: jax.grad(lambda a: loss(a, xs, solver), has_aux=True)(a)
got, report = jax.jit(jax.vmap(lambda a: each(a, SOLVER)))(a)
want, _ = jax.jit(jax.vmap(lambda a: each(a, pb.Sweep())))(a)
np.testing.assert_allclose(got, want, rtol=3e-6)
assert report.fell_back.tolist() == [False, True, False], report
assert np.isfinite(got[jnp.array([0, 2])]).all() and not np.isfinite(got[1])
# Where all entries are done, they are as they are alone.
alone = jax.jit(lambda a: each(a, SOLVER)[0])
both = jax.jit(jax.vmap(lambda a: each(a, SOLVER)[0]))(a[jnp.array([0, 2])])
assert both.tolist() == [float(alone(a[0])), float(alone(a[2]))]
"""
)


@pytest.mark.parametrize("program", [ROUNDS, RANGE], ids=["rounds", "range"])
def test_rounds_are_as_many_as_it_takes(run_on_devices, program):
    run_on_devices(program, 4, x64=True)


def test_costs_are_those_of_one_round():
    from jax.sharding import AbstractMesh

    solver = pb.Sharded("time", AbstractMesh((4,), ("time",)), method="corrections")
    assert solver.complexity(400) == pb.solvers.Complexity(300, 0, 1200, 4)
    assert solver.needs == "products" and not solver.differentiable
    traffic = solver.place.traffic(pair=100, vector=8, length=400)["backward"]
    assert (traffic.collectives, traffic.bytes) == (4, 24)
